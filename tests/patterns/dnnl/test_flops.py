"""The arithmetic of a profile's steps, also where a kernel of ours has packed the weights."""

import pytest

from tvm_byoc_dnnl.patterns.dnnl.policy import primitive_flops

CONV = 2 * 56 * 56 * 64 * 64 * 9


@pytest.mark.parametrize(
    ("kind", "weights", "flops"),
    [
        ("convolution", "f32:abcd:64x64x3x3", CONV),
        ("convolution", "s8:packed:64x64x3x3", CONV),
        ("convolution", "f32:packed:64x64x1x1", CONV // 9),
        ("convolution", "s8:packed:64x1x1x5x5", 2 * 56 * 56 * 64 * 25),
        ("reorder", "f32:abcd:64x64x3x3", 0),
    ],
)
def test_flops(kind: str, weights: str, flops: int) -> None:
    assert primitive_flops(kind, ["f32:acdb:1x64x56x56", weights, "f32:acdb:1x64x56x56"]) == flops


def test_a_convolution_that_normalises_its_parts() -> None:
    parts, statistics = ["f32:acdb:1x40x7x7", "f32:acdb:1x24x7x7"], ["f32:a:64"] * 4
    layouts = [*parts, *statistics, "f32:packed:96x64x1x1", "f32:a:96", "f32:acdb:1x96x7x7"]
    assert primitive_flops("convolution", layouts) == 2 * 7 * 7 * 64 * 96


Q, K, V, SCORES = "f32:abcd:1x2x16x8", "f32:abdc:1x2x8x32", "f32:abcd:1x2x32x8", "f32:abcd:1x2x16x32"
ROWS = "f32:abcd:1x2x32x8"  # the keys as the kernel of attention has them


@pytest.mark.parametrize(
    ("layouts", "flops"),
    [
        ([Q, K, SCORES], 2 * 2 * 16 * 32 * 8),
        ([SCORES, SCORES], 2 * 16 * 32),
        ([SCORES, V, Q], 2 * 2 * 16 * 32 * 8),
        ([Q, ROWS, V, Q], 2 * 2 * 16 * 32 * (8 + 8)),
    ],
)
def test_attention_is_one_kernel_or_three_primitives(layouts: list[str], flops: int) -> None:
    assert primitive_flops("attention", layouts) == flops


def test_a_recurrent_layer_uses_each_weight_in_each_step() -> None:
    layouts = ["f32:abc:10x2x3", "u8:a:4096", "f32:abcd:10x1x2x16"]
    assert primitive_flops("recurrent", layouts) == 2 * 10 * 2 * 1024


def test_a_gather_only_moves_data() -> None:
    assert primitive_flops("gather", ["f32:ab:30522x768", "u8:abc:1x128x8", "f32:abc:1x128x768"]) == 0
