"""Forty random functions per test run, always the same ones; thousands with ``make test-differential``."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from .compare import ReferenceFailed, check, why
from .generate import programs
from .program import Operand, Program, Step
from .shrink import shrink


@pytest.mark.slow
def test_random_functions_compute_what_tvm_computes() -> None:
    counts = {"functions": 0, "offloaded": 0, "TVM failed": 0}
    failed: list[Program] = []
    options = {"phases": [Phase.generate], "suppress_health_check": list(HealthCheck)}

    @settings(max_examples=40, derandomize=True, database=None, deadline=None, **options)
    @given(programs())
    def run(program: Program) -> None:
        counts["functions"] += 1
        try:
            counts["offloaded"] += bool(check(program))
        except ReferenceFailed:
            counts["TVM failed"] += 1
        except Exception:
            failed.append(program)

    run()
    if failed:
        small = shrink(failed[0], lambda smaller: why(smaller) is not None)
        pytest.fail(f"{len(failed)} functions differ: {why(small)}\n{small!r}\n{small.module.script()}", pytrace=False)
    # The generator draws what is worth comparing.
    assert counts["functions"] >= 40
    assert counts["TVM failed"] < counts["functions"] / 10, counts
    assert counts["offloaded"] > counts["functions"] / 2, counts


def test_failures_shrink_to_a_few_lines() -> None:
    """Here a function "fails" when it has a tanh that is not of a parameter alone."""
    steps = [Step("nn.relu", ("x0",)), Step("add", ("v0", "c0")), Step("split", ("v1",), {"indices_or_sections": 2})]
    steps += [Step("item", ("v2",), {"index": 1}), Step("tanh", ("v3",)), Step("exp", ("v4",)), Step("abs", ("v0",))]
    program = Program((Operand((4, 3)),), (Operand((3,)),), tuple(steps), ("v6", "v5"))

    def fails(p: Program) -> bool:
        assert p.module is not None  # every candidate is a function
        return any(s.op == "tanh" and s.args[0][0] != "x" for s in p.steps)

    small = shrink(program, fails)
    assert [step.op for step in small.steps] == ["split", "item", "tanh"]
    assert small.consts == () and len(small.params) == 1
