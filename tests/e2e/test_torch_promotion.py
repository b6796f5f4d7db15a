"""Operators of PyTorch whose operands have other dtypes than TVM's importer takes them to have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tvm_byoc_dnnl as byoc

torch = pytest.importorskip("torch", reason="needs torch, which `make test-torch` installs")

pytestmark = pytest.mark.native

FUNCTIONS: dict[str, Any] = {
    "divided by a number": lambda x, y: x / 4,
    "divided by integers": lambda x, y: x / y,
    "a number divided by integers": lambda x, y: 2 / y,
    "rounded down": lambda x, y: x // y,
    "plus a broken number": lambda x, y: x + 0.5,
    "times a broken number": lambda x, y: x * 1.5,
    "from a broken number": lambda x, y: 0.5 - x,
    "a mask of BERT": lambda x, y: (1.0 - (x > 2).long()) * -1e4,
    "less half of it": lambda x, y: torch.sub(x, y.float(), alpha=0.5),
    "a power": lambda x, y: x**0.5,
    "a power of a number": lambda x, y: 2.0**x,
    "a power of both": lambda x, y: y.float() ** x,
    "integers stay integers": lambda x, y: (x + 2) * y - 3,
    "with floats": lambda x, y: x + y.float() * 0.5,
    "two times it more": lambda x, y: torch.add(x, y, alpha=2),
    "above a broken number": lambda x, y: x > 2.5,
    "equal to a broken number": lambda x, y: x == y + 0.5,
    "rounded to zero": lambda x, y: torch.div(2 - x, y, rounding_mode="trunc"),
    "a truth compared": lambda x, y: (x > 2) > 0,
    "truths added up": lambda x, y: (x > 2).cumsum(0) + (x > 1).sum(),
    "any of bytes": lambda x, y: x.to(torch.uint8).any(0),
    "one with the others": lambda x, y: torch.cat([x, y.float()]),
    "the exponential of integers": lambda x, y: torch.exp(x),
    "a product of matrices": lambda x, y: x.reshape(2, 3) @ y.reshape(3, 2),
    "at least": lambda x, y: torch.clamp(x, 1.5),
    "counted down": lambda x, y: torch.arange(10, -1, -3)[0] + x,
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.filterwarnings("ignore")
def test_the_types_are_those_of_pytorch(name: str) -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Any, y: Any) -> Any:
            return FUNCTIONS[name](x, y)

    x, y = torch.arange(6), torch.arange(1, 7)
    got = byoc.Runner(byoc.compile(torch.export.export(Model(), (x, y))))(x.numpy(), y.numpy())
    want = Model()(x, y).numpy()
    assert got.dtype == want.dtype
    np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_sizes_are_those_that_pytorch_has_found() -> None:
    """As BERT cuts its positions: TVM's importer gives min(s, 64) places, which it cannot add to s others."""

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("places", torch.arange(64.0).reshape(1, 64))

        def forward(self, x: Any) -> Any:
            return (x + self.places[:, : x.shape[1]])[:, 0]

    x = torch.arange(15.0).reshape(3, 5)
    open_axes = ({0: torch.export.Dim("b"), 1: torch.export.Dim("s", max=64)},)
    run = byoc.Runner(byoc.compile(torch.export.export(Model(), (x,), dynamic_shapes=open_axes)))
    for shape in ((3, 5), (1, 64), (2, 1)):
        x = torch.rand(shape)
        np.testing.assert_allclose(run(x.numpy()), Model()(x).numpy(), rtol=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_a_view_of_attention_is_taken_as_of_pytorch() -> None:
    """As GPT-2 has it; the parts of a fused attention have other strides than its result."""

    class Model(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            q = x.reshape(2, 5, 4, 3).transpose(1, 2)
            made = torch.nn.functional.scaled_dot_product_attention(q, q, q).transpose(1, 2)
            return made.reshape(2, 5, 12).view(-1, 12)

    x = torch.rand(2, 5, 12)
    got = byoc.Runner(byoc.compile(torch.export.export(Model(), (x,))))(x.numpy())
    np.testing.assert_allclose(got, Model()(x).numpy(), rtol=1e-5)
