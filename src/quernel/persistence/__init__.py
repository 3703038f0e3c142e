"""Shipping a model: files that hold numbers and words only, and ONNX graphs."""

from quernel.persistence.archive import ModelFileError
from quernel.persistence.export import to_onnx
from quernel.persistence.inputs import onnx_inputs
from quernel.persistence.models import load, save

__all__ = ["ModelFileError", "load", "onnx_inputs", "save", "to_onnx"]
