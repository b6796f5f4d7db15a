"""Functions in which the random tests found a fault, as they were printed."""

from __future__ import annotations

import pytest

from .compare import check
from .program import Operand, Program, Step

FOUND = {
    # oneDNN takes a second operand per channel as if it lay along the softmax's axis.
    "softmax_with_an_operand_per_channel": Program(
        params=(Operand(shape=(4, 3, 17, 1)),),
        consts=(Operand(shape=(1, 3, 1, 1)),),
        steps=(Step("nn.softmax", ("x0",), {"axis": -4}), Step("minimum", ("v0", "c0"), {})),
        outputs=("v1",),
    ),
}


#: what failed to build, whoever computes it now
BUILT = {
    # a policy that took every first argument for a tensor
    "a_region_of_a_concatenation": Program(
        params=(Operand(shape=(2,)), Operand(shape=(1,))),
        consts=(),
        steps=(Step("concat", ("x1", "x0", "x1", "x1"), {"axis": -1}),),
        outputs=("v0",),
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_what_was_wrong_stays_right(name: str) -> None:
    assert check(FOUND[name]), "nothing was offloaded: the test says nothing"


@pytest.mark.parametrize("name", BUILT)
def test_what_failed_is_built(name: str) -> None:
    check(BUILT[name])
