"""Products with weights of 8 or 4 bits, against the same product with the real weights in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax
from tvm.relax import op as R

import tvm_byoc_dnnl as byoc
from tests.harness import accept, data, table_tests
from tvm_byoc_dnnl.vendors.quantization import pattern_example


class Weights:
    """Stored weights of ``columns`` × ``depth``, one scale and zero point for each group along the depth."""

    def __init__(
        self, columns: int, depth: int, group: int, bits: int, zeros: bool = False, stored: str = "float32"
    ) -> None:
        rng = np.random.default_rng(columns + depth)
        self.shape, self.bits = (columns, depth), bits
        groups = columns * depth // group
        limit = 2 ** (bits - 1)
        self.numbers = rng.integers(-limit, limit, (groups, group)).astype("int8")
        self.scales = (rng.random(groups) / limit + 0.01).astype(stored).astype("float32")
        self.zeros = rng.integers(-3, 4, groups).astype("int8") if zeros else np.zeros(groups, "int8")

    @property
    def real(self) -> np.ndarray:
        """The weights as the model means them, ``depth`` × ``columns``."""
        real = (self.numbers.astype("float64") - self.zeros[:, None]) * self.scales[:, None]
        return real.reshape(self.shape).T

    def __call__(self, x: Any) -> Any:
        if self.bits == 8:
            numbers = relax.const(self.numbers)
        else:
            pairs = self.numbers.reshape(len(self.numbers), -1, 2)
            stored = relax.const(((pairs[..., 1] << 4) | (pairs[..., 0] & 15)).astype("int8"))
            four = relax.const(np.int8(4), "int8")
            low, high = R.right_shift(R.left_shift(stored, four), four), R.right_shift(stored, four)
            numbers = R.reshape(R.stack([low, high], -1), self.numbers.shape)
        real = R.dequantize(numbers, relax.const(self.scales), relax.const(self.zeros), axis=0, out_dtype="float32")
        return R.matmul(x, R.permute_dims(R.reshape(real, self.shape)))


def row(name: str, shape: tuple[int, ...], *weights: Any) -> Any:
    """An accepted product of a source of this shape."""
    made = Weights(*weights)
    return accept(name, made, data(*shape), reference=by_numpy(made))


def by_numpy(weights: Weights) -> Callable[..., np.ndarray]:
    return lambda x: x @ weights.real


ACCEPT = [
    *(
        row(f"{bits}-bits-{name}", shape, columns, depth, 32, bits, zeros)
        for bits in (8, 4)
        for name, shape, columns, depth, zeros in (
            ("one-row", (1, 64), 7, 64, False),
            ("rows", (13, 96), 37, 96, False),
            ("zero-points", (3, 64), 17, 64, True),
            ("batches", (2, 5, 64), 3, 64, False),
            ("no-rows", (0, 64), 11, 64, False),
        )
    ),
    *(
        row(f"{bits}-bits-scales-of-float16", (rows, 96), 37, 96, 32, bits, True, "float16")
        for bits, rows in ((8, 1), (4, 1), (8, 23), (4, 23))
    ),
]

test_accepted, _ = table_tests(ACCEPT, [])


def test_groups_that_the_kernel_cannot_read_stay_in_float32():
    model = pattern_example(Weights(5, 24, 12, 8), (3, 24))()
    reasons = [miss.reason for call in byoc.explain(model).calls for miss in call.near_misses]
    assert any("groups of 12 weights" in reason for reason in reasons), reasons
