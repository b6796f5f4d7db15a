"""A verdict is yes, or a reason."""

import pytest

from tvm_byoc_dnnl.core.verdict import Reject, as_reject, require


def test_reject_is_falsy_and_can_be_raised():
    assert not Reject("no")
    with pytest.raises(Reject, match="dilation 3"):
        require(False, "dilation 3")
    require(True, "never said")


@pytest.mark.parametrize(("answer", "reason"), [(True, None), (False, "p says no"), (Reject("why"), "why")])
def test_as_reject(answer, reason):
    verdict = as_reject(answer, "p")
    assert (verdict.reason if verdict is not None else None) == reason


def test_a_predicate_that_answers_nonsense_is_named():
    with pytest.raises(TypeError, match="the predicate of x returned None; expected True, False"):
        as_reject(None, "the predicate of x")
