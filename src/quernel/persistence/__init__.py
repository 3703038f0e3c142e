"""Model persistence: files that are loaded without executing code, and export to ONNX.

`save` and `load` (`models`) write and read model files: `archive` is the file format, by skops, and `integrity` checks
what was loaded. `to_onnx` exports a model to an ONNX graph: `onnx_export` has a function per estimator,
`onnx_graph` the encoding of tables, the feature maps, and the tensors in which they are written;
`onnx_pipeline` registers the estimators with skl2onnx, which exports pipelines.
"""

from quernel.persistence.archive import ModelFileError
from quernel.persistence.models import load, save
from quernel.persistence.onnx_export import to_onnx
from quernel.persistence.onnx_graph import onnx_inputs
from quernel.persistence.onnx_pipeline import register_converters

__all__ = ["ModelFileError", "load", "onnx_inputs", "register_converters", "save", "to_onnx"]
