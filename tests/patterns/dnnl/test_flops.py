"""The arithmetic of a profile's steps, also where a kernel of ours has packed the weights."""

import pytest

from tvm_byoc_dnnl.patterns.dnnl.flops import primitive_flops

CONV = 2 * 56 * 56 * 64 * 64 * 9


@pytest.mark.parametrize(
    ("kind", "weights", "flops"),
    [
        ("convolution", "f32:abcd:64x64x3x3", CONV),
        ("convolution", f"u8:a:{36 * 64 * 64 * 4}", CONV),  # Winograd, 4x4 results at once
        ("convolution", f"u8:a:{16 * 64 * 64 * 4}", CONV),
        ("convolution", f"u8:a:{64 * 64 * 4}", CONV // 9),  # a product: the kernel is 1x1
        ("reorder", "f32:abcd:64x64x3x3", 0),
    ],
)
def test_flops(kind: str, weights: str, flops: int) -> None:
    assert primitive_flops(kind, ["f32:acdb:1x64x56x56", weights, "f32:acdb:1x64x56x56"]) == flops
