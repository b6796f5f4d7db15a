"""bench.elementwise: what it says of errors, and where on the page."""

from __future__ import annotations

import numpy as np
import pytest

from bench.elementwise import PAGE, Error, page

F = np.float32


def errors(got: list[float], want: list[float]) -> dict[str, float]:
    error = Error()
    error.add(np.arange(len(got), dtype="float32"), np.array(got, "float32"), np.array(want))
    return error.state


def test_results_that_are_rounded_have_no_error() -> None:
    state = errors([1, np.nan, np.inf, 0], [1 + 2.0**-25, np.nan, 1e39, 1e-50])
    assert state == {"units": 0, "at": 0, "small": 0, "small_at": 0, "odd": 0, "odd_at": 0}


def test_units_in_the_last_place() -> None:
    state = errors([1, np.nextafter(F(1), F(2)), 3], [1, 1, 3 - 2.5 * 2.0**-22])
    assert state["units"] == pytest.approx(2.5) and state["at"] == 2


def test_small_results_are_judged_by_distance() -> None:
    state = errors([0, 1e-6], [1e-7, 1e-6])
    assert state["units"] == 0 and state["small"] == pytest.approx(1e-7) and state["small_at"] == 0


@pytest.mark.parametrize(("got", "want"), [(np.nan, 1.0), (np.inf, 1.0), (1.0, np.nan), (3e38, np.inf)])
def test_results_that_are_no_numbers_are_counted(got: float, want: float) -> None:
    state = errors([1, got], [1, want])
    assert state["odd"] == 1 and state["odd_at"] == 1 and state["units"] == 0


def test_the_page_has_one_table_of_each_machine() -> None:
    error = Error().state
    measured = {"CPU, avx2": {"log": (1, {"dnnl": error, "TVM": error})}, "CPU, sse41": {"exp": (17, {"TVM": error})}}
    once = page(measured, PAGE.read_text())
    assert once.count("| `log` | dnnl | 0.5 | rounding | none | all |") == 1
    assert "| `exp` | TVM | 0.5 | rounding | none | each 17th |" in once
    assert page(measured, once) == once
