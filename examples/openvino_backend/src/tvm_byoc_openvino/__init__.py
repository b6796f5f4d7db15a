"""OpenVINO as a backend: a region becomes an OpenVINO model, its compiled form a blob in the library.

operators.py  how each operator is written for OpenVINO; what cannot be written is not taken
region.py     a region as an OpenVINO model
blob.py       the compiled model as bytes, and how a process loads and runs them
"""

from __future__ import annotations

import tvm_byoc_dnnl as byoc

__all__ = ["register"]


def register() -> None:
    """Called by the entry point, once, when the backends are first asked for; OpenVINO itself is imported later."""
    from . import blob
    from .operators import OPERATORS, takes

    for op in OPERATORS:
        byoc.register_annotate_compiler("openvino", op, takes(op))
    byoc.register_codegen("openvino", blob.codegen, options=blob.OPTIONS)
    byoc.register_blob_runner("openvino", blob.check, blob.load)
