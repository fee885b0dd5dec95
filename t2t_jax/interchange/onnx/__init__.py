"""The format of ONNX, whose graphs run where onnxruntime does: servers, phones, browsers."""

from t2t_jax.interchange.onnx.writing import VOCABULARIES, carried, write

__all__ = ["VOCABULARIES", "carried", "write"]
