"""The checks of `doctor` for oneDNN."""

from __future__ import annotations

from ...vendor import Examination
from .library import WHEEL

_VERBOSE = "prints a line per primitive, which takes longer than small primitives themselves"
_OLD_ISA = "forbids newer instructions"

EXAMINATION = Examination(
    packages=[WHEEL],
    variables={
        "ONEDNN_VERBOSE": _VERBOSE,
        "DNNL_VERBOSE": _VERBOSE,
        "ONEDNN_MAX_CPU_ISA": _OLD_ISA,
        "DNNL_MAX_CPU_ISA": _OLD_ISA,
    },
    prefixes=["ONEDNN_", "DNNL_"],
)
