"""Convolutions on AVX2 by kernels of ours, in built libraries and in emitted source.

Groups go to the direct kernel where their outputs fill vectors, but no whole blocks of oneDNN's, and so do pictures;
groups of few outputs go to the kernel whose vectors hold several (test_convolutions_of_groups.py), as depthwise ones of
5x5 and 7x7 do, and convolutions 1x1 of few pixels go to the packed product. The cases run in a process that is
limited to AVX2. The error is a share of the largest result; sums of at most 400 products of float32 stay below
1e-6. Emitted source takes the C compiler seconds: one case of each kernel of ours in every run, all in the sweep.
"""

from __future__ import annotations

import pytest

from tests.e2e import convolution
from tests.isa import isa

pytestmark = pytest.mark.skipif(isa() in ("sse41", "avx"), reason="the kernel needs AVX2")


#: names of the numbers of a row
ROW = ("channels", "per_group", "groups", "kernel", "stride", "batch", "size", "finish")
#: what is right in one call of which kernel
KINDS: dict[str, tuple[str, dict[str, tuple[object, ...]]]] = {
    "groups": (
        "direct",
        {
            "1x1": (24, 28, 4, 1, 1, 1, 13, "relu"),
            "3x3, stride 2": (24, 28, 4, 3, 2, 3, 13, "silu"),
            "few channels": (10, 12, 5, 3, 1, 2, 13, "add"),
            "5x5, odd": (21, 17, 3, 5, 1, 1, 13, "silu"),
            "1x1, many": (136, 34, 4, 1, 1, 1, 13, "add"),
            "3x3, many": (102, 35, 3, 3, 2, 1, 13, "relu"),
        },
    ),
    "images that are one long row": (
        "direct",
        {
            "2 rows of 98 pixels": (136, 34, 4, 1, 1, 1, 14, "relu"),
            "three images": (136, 34, 4, 1, 1, 3, 14, "add"),
            "a single row": (136, 34, 4, 1, 1, 1, 7, "silu"),
            "every second pixel: rows stay as they are": (136, 34, 4, 1, 2, 2, 15, "add"),
            "one pixel": (136, 34, 4, 1, 2, 2, 1, "relu"),
        },
    ),
    "pictures, which become channels last": (
        "direct",
        {
            "to 16": (3, 16, 1, 3, 2, 2, 33, "hardswish"),
            "to 24": (3, 24, 1, 3, 1, 2, 33, "add"),
            "grey": (1, 40, 1, 5, 1, 2, 33, "relu"),
            "four channels": (4, 17, 1, 3, 2, 2, 33, "silu"),
        },
    ),
    "large depthwise kernels": (
        "depthwise",
        {
            "5x5": (20, 1, 20, 5, 1, 2, 19, "hardswish"),
            "5x5, stride 2": (24, 1, 24, 5, 2, 2, 19, "relu"),
            "7x7": (33, 1, 33, 7, 1, 2, 19, "add"),
            "7x7, stride 2": (16, 1, 16, 7, 2, 2, 19, "silu"),
        },
    ),
    "few pixels, which are rows of a product": (
        "product",
        {
            "plain": (400, 80, 1, 1, 1, 1, 13, "relu"),
            "outputs that fill no panel": (300, 95, 1, 1, 2, 1, 13, "relu"),
            "add": (400, 80, 1, 1, 1, 1, 13, "add"),
            "add, stride 2": (400, 80, 1, 1, 2, 1, 13, "add"),
            "hardswish": (400, 80, 1, 1, 1, 1, 13, "hardswish"),
        },
    ),
    "others, which stay with the library": (
        "library",
        {
            "eight channels": (32, 8, 4, 3, 1, 1, 13, "relu"),
            "depthwise 3x3": (20, 1, 20, 3, 1, 1, 13, "relu"),
            "picture by 7x7": (3, 64, 1, 7, 1, 1, 13, "relu"),
            "five channels": (5, 16, 1, 3, 1, 1, 13, "relu"),
            "one channel by 3x3": (1, 128, 1, 3, 1, 1, 13, "relu"),
            "few pixels, silu": (400, 80, 1, 1, 1, 1, 13, "silu"),
            "odd images, of which every second line is not evenly spread": (400, 80, 1, 1, 2, 2, 13, "relu"),
        },
    ),
}


@pytest.mark.parametrize("emitted", [1, pytest.param(None, marks=pytest.mark.sweep)], ids=["one in source", "all"])
def test_each_is_right_by_the_kernel_of_its_kind(emitted: int | None) -> None:
    cases: dict[str, dict[str, object]] = {}
    in_source: dict[str, list[str]] = {}
    for kind, (kernel, rows) in KINDS.items():
        in_source.setdefault(kernel, []).extend(f"{kind}: {name}" for name in rows)
        for name, row in rows.items():
            case = dict(zip(ROW, row, strict=True))
            square = {key: (case[key], case[key]) for key in ("kernel", "size")}
            expected = kernel if kernel == "library" else f"{kernel}:avx2"
            cases[f"{kind}: {name}"] = case | square | {"expected": expected}
    if emitted:
        in_source = {kernel: in_source[kernel] for kernel in ("depthwise", "direct")}
    convolution.run("AVX2", cases, [name for names in in_source.values() for name in names[:emitted]])
