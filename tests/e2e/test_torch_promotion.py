"""Arithmetic of PyTorch whose operands are integers and whose result is floating."""

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
