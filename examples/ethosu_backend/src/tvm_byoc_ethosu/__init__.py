"""Ethos-U as a backend: regions of int8 are written as tvm_byoc_litert writes them, and compiled by Vela.

vela.py     a model compiled by Vela, and what Vela expects of it
backend.py  which groups are taken, the codegen, and the estimates as limits, notes and costs
"""

from __future__ import annotations

import tvm_byoc_dnnl as byoc

__all__ = ["register"]


def register() -> None:
    """Called by the entry point, once, when the backends are first asked for."""
    from . import backend

    byoc.register_namespace("ethosu", api=1, layout="NHWC", weights="OHWI", fits=backend.fits, notes=backend.notes)
    byoc.register_quantization("ethosu", activations=("int8", "uint8"), check=backend.check_group)
    byoc.register_codegen("ethosu", backend.codegen, options=backend.OPTIONS)
    byoc.register_blob_runner("ethosu", backend.check, backend.load)
    byoc.register_cost("ethosu", backend.cost)
