"""Whole models in processes of their own: what becomes of one that hangs or crashes there."""

from __future__ import annotations

import importlib
import math
from typing import Any

import pytest

import tvm_byoc_dnnl as byoc
from tests.c_kernel import c_kernel
from tests.unit.failing_vendor import vendors
from tests.unit.test_fallback_codegen import Chain
from tvm_byoc_dnnl.core.verdict import Failure
from tvm_byoc_dnnl.tuning.database import Database, Placement, Timing

tune = importlib.import_module("tvm_byoc_dnnl.tuning")

LONG, SHORT = 600.0, 3.0
HANG = "static volatile int running = 1; while (running) { }"
LATER = "static volatile long calls = 0; if (i == 0) ++calls; if (calls > 3) "


@pytest.mark.parametrize(
    ("body", "at_start", "in_turns", "reason"),
    [
        pytest.param(HANG, SHORT, SHORT, "its process gave no answer for 3 s", id="hangs-at-once"),
        pytest.param(f"{LATER}{{ {HANG} }}", LONG, SHORT, "its process gave no answer for 3 s", id="hangs-later"),
        pytest.param(f"{LATER}__builtin_trap();", LONG, LONG, "its process ended by SIG", id="crashes"),
    ],
)
def test_a_model_that_fails_leaves_the_other_its_turns(
    body: str, at_start: float, in_turns: float, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []

    class Runner(tune._Runner):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            made.append(self)

        def start(self) -> None:
            self.patience_s = at_start if self is made[0] else LONG
            super().start()

        def turn(self) -> None:
            self.patience_s = in_turns if self is made[0] else LONG
            super().turn()

    monkeypatch.setattr(tune, "_Runner", Runner)
    with vendors("va", "vb") as (_, bad):
        bad.faults["source"] = lambda _ops: c_kernel("vb_0", body)
        models = [(byoc.partition(Chain, name), None) for name in ("vb", "va")]
        failed, timed = tune.race_apart(models, "llvm", rounds=2)
    assert isinstance(failed, Failure) and failed.stage == "run" and failed.reason.startswith(reason)
    assert isinstance(timed, Timing) and timed.seconds > 0 and 1 <= timed.blocks <= 2
    assert all(runner.process.poll() is not None for runner in made)


def test_the_patience_grows_with_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    given = []

    class Runner(tune._Runner):
        def start(self) -> None:
            given.append(self.patience_s)
            super().start()
            given.append(self.patience_s)

    monkeypatch.setattr(tune, "_Runner", Runner)
    monkeypatch.setattr(tune, "_SHARE", 1e3)
    with vendors("va"):
        tune.race_apart([(byoc.partition(Chain, "va"), None)], "llvm", rounds=1)
    compiled, loaded = given
    assert compiled > tune._SILENCE_S and loaded >= compiled


SLOW, FAST = Timing(2.0, 0.0, True), Timing(1.0, 0.0, True)
ALMOST = Timing(1.99, 0.0, True)
HUNG = Failure("run", "its process gave no answer for 130 s")


@pytest.mark.parametrize(
    ("times", "chosen", "seconds", "default_seconds"),
    [
        pytest.param([FAST, HUNG, SLOW], "default", 1.0, 1.0, id="another one fails"),
        pytest.param([SLOW, FAST, HUNG], "first", 1.0, 2.0, id="one alone is faster"),
        pytest.param([SLOW, ALMOST, HUNG], "first", 1.99, 2.0, id="one alone is faster by little"),
        pytest.param([SLOW, HUNG, ALMOST], "default", 2.0, 2.0, id="a mixture is faster by little"),
        pytest.param([SLOW, ALMOST, FAST], "second", 1.0, 2.0, id="a mixture is faster"),
        pytest.param([HUNG, HUNG, SLOW], "second", 2.0, None, id="the default one fails"),
        pytest.param([HUNG, HUNG, HUNG], "default", None, None, id="all fail"),
    ],
)
def test_a_placement_that_fails_is_not_chosen(
    times: list[Any], chosen: str, seconds: Any, default_seconds: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune, "race_apart", lambda *_: times)
    lines: list[str] = []
    ways = [{"a": name} for name in ("default", "first", "second")]
    found = tune._fastest(
        Placement(), ways, [Chain] * 3, Database(None), "llvm", math.inf, lines.append, {"x": ways[1]}
    )
    assert (found, found.seconds, found.default_seconds) == ({"a": chosen}, seconds, default_seconds)
    assert found.alone_seconds == {"x": tune.seconds_of(times[1])}
    assert "failed: its process gave no answer for 130 s" in lines[-1] or HUNG not in times
