"""The instruction set that oneDNN uses here: what this CPU has, or less where it is limited or hidden."""

from __future__ import annotations

import functools
import os

from bench.without_isa import VARIABLES
from tvm_byoc_dnnl.core import _native

__all__ = ["computes_in", "has_avx512", "has_kernels", "has_tiles", "isa", "isa_limit", "multiplies_bytes"]

_LIMITS = ("ONEDNN_MAX_CPU_ISA", *VARIABLES)
_FLOAT16 = ("avx512_core_fp16", "avx512_core_amx", "avx512_core_amx_fp16")
_BFLOAT16 = ("avx512_core_bf16", *_FLOAT16)


@functools.cache
def isa() -> str:
    """oneDNN's name of it, for example ``avx2`` or ``avx512_core_vnni``."""
    return _native.engine_info("dnnl")["isa"]


def isa_limit() -> dict[str, str]:
    """The environment variables that limit it, where they are set, for a process that inherits nothing else."""
    return {name: os.environ[name] for name in _LIMITS if name in os.environ}


def has_avx512() -> bool:
    """Whether it is AVX-512 of any kind."""
    return isa().startswith("avx512")


def has_tiles() -> bool:
    """Whether AMX multiplies bfloat16."""
    return "amx" in isa()


def has_kernels() -> bool:
    """Whether kernels of this package take the place of oneDNN's primitives: from AVX2 on."""
    return isa() not in ("sse41", "avx")


def computes_in(dtype: str) -> bool:
    """Whether this CPU computes in ``bfloat16`` or ``float16``, and does not only move it."""
    if isa() == "avx2_vnni_2":  # converts both
        return True
    return isa() in (_BFLOAT16 if dtype == "bfloat16" else _FLOAT16)


def multiplies_bytes(kind: str) -> bool:
    """Whether there is an exact product of 8-bit integers: with VNNI oneDNN's, from AVX2 on a kernel of ours."""
    if isa() in ("avx2", "avx512_core"):
        return kind != "deconvolution"
    return isa() not in ("sse41", "avx")
