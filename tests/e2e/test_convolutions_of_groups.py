"""Groups of few channels, of which one vector holds several, in built libraries and in emitted source.

The cases run in a process that is limited to AVX2, and in one with AVX-512 where that is there. The error is a share of
the largest result; sums of at most 400 products of float32 stay below 1e-6.
"""

from __future__ import annotations

import pytest

from tests.e2e import convolution
from tests.isa import has_avx512, has_kernels

pytestmark = pytest.mark.skipif(not has_kernels(), reason="the kernel needs AVX2")

LIMITS = {"AVX2": "avx2", "AVX512_CORE": "avx512_core"}

SPARSE = {"kernel": (3, 3), "batch": 2, "size": (9, 21)}
CASES: dict[str, dict[str, object]] = {
    "2 to 2": {"channels": 34, "groups": 17, "per_group": 2, "kernel": (3, 3), "size": (28, 28)},
    "3 to 3, tails everywhere": {"channels": 33, "groups": 11, "per_group": 3, **SPARSE, "finish": "silu"},
    "3 to 4": {"channels": 24, "groups": 8, "per_group": 4, "kernel": (3, 3), "size": (19, 19), "finish": "add"},
    "5 to 7": {"channels": 45, "groups": 9, "per_group": 7, **SPARSE, "finish": "hardswish"},
    "1 to 2": {"channels": 24, "groups": 24, "per_group": 2, **SPARSE},
    "1 to 5": {"channels": 13, "groups": 13, "per_group": 5, **SPARSE, "finish": "silu"},
    "4 to 2": {"channels": 32, "groups": 8, "per_group": 2, **SPARSE, "finish": "add"},
    "6 to 2": {"channels": 42, "groups": 7, "per_group": 2, **SPARSE},
    "2 to 2, stride 2": {"channels": 38, "groups": 19, "per_group": 2, "kernel": (5, 5), "size": (19, 41), "stride": 2},
    "2 to 2, stride 3": {"channels": 38, "groups": 19, "per_group": 2, "kernel": (7, 7), "size": (31, 60), "stride": 3},
    "2 to 2, holes": {"channels": 38, "groups": 19, "per_group": 2, **SPARSE, "dilation": 2},
    "2 to 2 by 5x5": {"channels": 38, "groups": 19, "per_group": 2, "kernel": (5, 5), "finish": "add"},
    "2 to 2 by 1x7": {"channels": 38, "groups": 19, "per_group": 2, "kernel": (1, 7)},
    "2 to 2 by 11x11": {"channels": 18, "groups": 9, "per_group": 2, "kernel": (11, 11), "size": (12, 30)},
    "an image of 5 pixels": {"channels": 38, "groups": 19, "per_group": 2, "kernel": (3, 3), "size": (1, 5)},
    "a long row": {"channels": 10, "groups": 5, "per_group": 2, "kernel": (1, 9), "size": (1, 2000)},
    "not finite": {"channels": 38, "groups": 19, "per_group": 2, **SPARSE, "special": True, "dilation": 2},
}


#: limit -> those that are emitted in every run
FEW = {"AVX2": ("4 to 2",)}


@pytest.mark.slow
@pytest.mark.parametrize("everywhere", [False, pytest.param(True, marks=pytest.mark.sweep)], ids=["few", "all"])
@pytest.mark.parametrize("limit", LIMITS)
def test_several_groups_are_right_in_one_vector(limit: str, everywhere: bool) -> None:
    if limit == "AVX512_CORE" and not has_avx512():
        pytest.skip("there is no AVX-512")
    expected = {"expected": f"groups:{LIMITS[limit]}"}
    in_source = CASES if everywhere else FEW.get(limit, ())
    convolution.run(limit, {name: case | expected for name, case in CASES.items()}, in_source)
