"""Whether a machine is quiet, by what others take of it."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from tvm_byoc_dnnl.core import machine
from tvm_byoc_dnnl.core.machine import Neighbours
from tvm_byoc_dnnl.report.profile import Profile
from tvm_byoc_dnnl.runtime.base import Company


def test_own_work_is_not_a_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cores were busy for 10 s of 4 × 5 s; 4 s of these were ours."""
    samples = iter([(100.0, 20.0, 7.0), (110.0, 24.0, 12.0)])
    monkeypatch.setattr(machine, "_sample", lambda: next(samples))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    with Neighbours() as others:
        pass
    assert others.share == pytest.approx(6 / 20)
    assert not others.quiet


def test_a_busy_process_is_seen() -> None:
    """On the one core that is looked at: whoever else is there, too, makes it busier."""
    cores = os.sched_getaffinity(0)
    code = f"import os\nos.sched_setaffinity(0, {{{min(cores)}}})\nprint(flush=True)\nwhile True: pass"
    busy = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert busy.stdout is not None
        busy.stdout.readline()
        os.sched_setaffinity(0, {min(cores)})
        with Neighbours() as others:
            time.sleep(1.0)
    finally:
        os.sched_setaffinity(0, cores)
        busy.kill()
        busy.wait()
    assert others.share > 0.5


def test_a_profile_says_when_it_was_disturbed() -> None:
    assert "the machine was not quiet: others took 43% of the cores" in Profile(others=0.43).to_text()
    assert "quiet" not in Profile(others=0.05).to_text()


def test_a_profile_says_that_calls_ran_on_fewer_threads() -> None:
    text = Profile(company=Company(late=2, narrowed=31)).to_text()
    assert "31 calls of a region ran on fewer threads than it may use, after 2 that were late" in text
    assert "fewer threads" not in Profile().to_text()
