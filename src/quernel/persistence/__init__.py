"""Shipping a model: files that hold numbers and words only, and ONNX graphs."""

from quernel.persistence.archive import ModelFileError
from quernel.persistence.models import load, save
from quernel.persistence.onnx_export import to_onnx
from quernel.persistence.onnx_inputs import onnx_inputs

__all__ = ["ModelFileError", "load", "onnx_inputs", "save", "to_onnx"]
