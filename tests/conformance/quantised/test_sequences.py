"""Every pair of quantised operators in sequence, against what their definition allows; `make test-sweep` runs all.

What an element may be is an interval (`bounds`); a lost clamp or rounding is outside of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from . import check, pairs
from .sequence import Sequential

#: sequences in one model
_TOGETHER = 8
#: of all models, `make test` runs one in so many
_SHARE = 32
PAIRS = list(itertools.product(range(len(pairs.NAMES)), repeat=2))
np.random.default_rng(0).shuffle(PAIRS)  # a share has pairs of all kinds
GROUPS = [PAIRS[i : i + _TOGETHER] for i in range(0, len(PAIRS), _TOGETHER)]


def drawn(group: list[tuple[int, int]], seed: int = 0, **options: Any) -> list[Sequential]:
    """The sequences of a group of pairs, without those that no node has."""
    found = []
    for place, (first, second) in enumerate(group):
        names = [pairs.NAMES[first], pairs.NAMES[second]]
        try:
            found.append(pairs.sequence(names, [first, second, seed], f"s{place}_", **options))
        except NotImplementedError:
            continue
    return found


def assert_allowed(sequences: list[Sequential], **options: Any) -> None:
    """All results of these sequences, compiled with these options."""

    def run(some: Sequence[Sequential]) -> list[np.ndarray]:
        return check.by_this_package(some, **options)

    wrong = check.problems(sequences, run(sequences))
    assert not wrong, "\n".join(check.explain(sequences[place], run) for place in wrong)


def parameters(share: int) -> list[Any]:
    """All groups; those beyond the share carry the marker that leaves them out of `make test`."""
    return [pytest.param(i, marks=() if i % share == 0 else pytest.mark.sweep) for i in range(len(GROUPS))]


@pytest.mark.parametrize("group", parameters(_SHARE))
def test_pairs(group: int) -> None:
    assert_allowed(drawn(GROUPS[group]))


@pytest.mark.parametrize("group", parameters(_SHARE))
def test_pairs_whose_scales_are_powers_of_two(group: int) -> None:
    """Almost nothing is open there, halves included."""
    assert_allowed(drawn(GROUPS[group], powers=True))


@pytest.mark.parametrize("group", parameters(2 * _SHARE))
def test_onnx_runtime_is_within_the_bounds(group: int) -> None:
    """Of operators between conversions: its own quantised ones are coarser, and saturate on some CPUs."""
    sequences = [s for s in drawn(GROUPS[group]) if not any(node.op_type.startswith("QLinear") for node in s.nodes)]
    assert sequences
    wrong = check.problems(sequences, check.by_onnx_runtime(sequences))
    assert not wrong, "\n".join(check.explain(sequences[place], check.by_onnx_runtime) for place in wrong)
