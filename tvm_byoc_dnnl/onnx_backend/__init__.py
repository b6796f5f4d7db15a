"""The package behind ONNX's own backend interface, ``onnx.backend.base``.

    from tvm_byoc_dnnl import onnx_backend

    prepared = onnx_backend.prepare(model)
    (y,) = prepared.run([x])

ONNX's tools and its test suite call `prepare`, `run_model`, `run_node`, `supports_device` and `is_compatible`.
"""

from __future__ import annotations

from .backend import Backend, PreparedModel

__all__ = ["Backend", "PreparedModel", "is_compatible", "prepare", "run_model", "run_node", "supports_device"]

is_compatible = Backend.is_compatible
prepare = Backend.prepare
run_model = Backend.run_model
run_node = Backend.run_node
supports_device = Backend.supports_device
