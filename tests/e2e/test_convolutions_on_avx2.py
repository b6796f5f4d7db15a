"""Convolutions on AVX2 by kernels of ours, in built libraries and in emitted source.

Groups go to the direct kernel where their outputs fill vectors, but no whole blocks of oneDNN's, and so do pictures;
groups of few outputs go to the kernel whose vectors hold several (test_convolutions_of_groups.py), as depthwise ones of
5x5 and 7x7 do, and convolutions 1x1 of few pixels go to the packed product. Each case runs in a process that is limited
to AVX2. The error is a share of the largest result; sums of at most 400 products of float32 stay below 1e-6.
"""

from __future__ import annotations

import pytest

from tests.e2e import convolution
from tests.isa import isa

pytestmark = pytest.mark.skipif(isa() in ("sse41", "avx"), reason="the kernel needs AVX2")


def run(
    channels: int, per_group: int, groups: int, kernel: int, stride: int, batch: int, size: int, finish: str, kind: str
) -> None:
    case = {
        "channels": channels,
        "per_group": per_group,
        "groups": groups,
        "kernel": (kernel, kernel),
        "stride": stride,
        "batch": batch,
        "size": (size, size),
        "finish": finish,
        "expected": kind if kind == "library" else f"{kind}:avx2",
    }
    convolution.run("AVX2", {"the case": case})


@pytest.mark.parametrize(
    ("channels", "per_group", "groups", "kernel", "stride", "batch", "finish"),
    [
        (24, 28, 4, 1, 1, 1, "relu"),
        (24, 28, 4, 3, 2, 3, "silu"),
        (10, 12, 5, 3, 1, 2, "add"),
        (21, 17, 3, 5, 1, 1, "silu"),
        (136, 34, 4, 1, 1, 1, "add"),
        (102, 35, 3, 3, 2, 1, "relu"),
    ],
)
def test_groups_are_right_in_one_call(
    channels: int, per_group: int, groups: int, kernel: int, stride: int, batch: int, finish: str
) -> None:
    run(channels, per_group, groups, kernel, stride, batch, 13, finish, "direct")


@pytest.mark.parametrize(
    ("size", "stride", "batch", "finish"),
    [
        (14, 1, 1, "relu"),  # 2 rows of 98 pixels
        (14, 1, 3, "add"),
        (7, 1, 1, "silu"),  # a single row
        (15, 2, 2, "add"),  # every second pixel: rows stay as they are
        (1, 2, 2, "relu"),
    ],
)
def test_groups_of_images_that_are_one_long_row(size: int, stride: int, batch: int, finish: str) -> None:
    run(136, 34, 4, 1, stride, batch, size, finish, "direct")


@pytest.mark.parametrize(
    ("channels", "outputs", "kernel", "stride", "finish"),
    [(3, 16, 3, 2, "hardswish"), (3, 24, 3, 1, "add"), (1, 40, 5, 1, "relu"), (4, 17, 3, 2, "silu")],
)
def test_pictures_become_channels_last(channels: int, outputs: int, kernel: int, stride: int, finish: str) -> None:
    run(channels, outputs, 1, kernel, stride, 2, 33, finish, "direct")


@pytest.mark.parametrize(
    ("channels", "kernel", "stride", "finish"),
    [(20, 5, 1, "hardswish"), (24, 5, 2, "relu"), (33, 7, 1, "add"), (16, 7, 2, "silu")],
)
def test_large_depthwise_kernels(channels: int, kernel: int, stride: int, finish: str) -> None:
    run(channels, 1, channels, kernel, stride, 2, 19, finish, "depthwise")


@pytest.mark.parametrize(
    ("channels", "per_group", "groups", "kernel"),
    [(32, 8, 4, 3), (20, 1, 20, 3), (3, 64, 1, 7), (5, 16, 1, 3), (1, 128, 1, 3)],
    ids=["eight channels", "depthwise 3x3", "picture by 7x7", "five channels", "one channel by 3x3"],
)
def test_others_stay_with_the_library(channels: int, per_group: int, groups: int, kernel: int) -> None:
    run(channels, per_group, groups, kernel, 1, 1, 13, "relu", "library")


@pytest.mark.parametrize(
    ("channels", "outputs", "stride", "batch", "finish", "expected"),
    [
        (400, 80, 1, 1, "relu", "product"),
        (300, 95, 2, 1, "relu", "product"),  # outputs that fill no panel
        (400, 80, 1, 1, "add", "product"),
        (400, 80, 2, 1, "add", "product"),
        (400, 80, 1, 1, "hardswish", "product"),
        (400, 80, 1, 1, "silu", "library"),
        (400, 80, 2, 2, "relu", "library"),  # odd images, of which every second line is not evenly spread
    ],
)
def test_few_pixels_are_rows_of_a_product(
    channels: int, outputs: int, stride: int, batch: int, finish: str, expected: str
) -> None:
    run(channels, outputs, 1, 1, stride, batch, 13, finish, expected)
