"""Every pair of quantised operators in sequence, against what their definition allows; `make test-sweep` runs all.

What an element may be is an interval (`bounds`); a lost clamp or rounding is outside of it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
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


def assert_allowed(sequences: list[Sequential], is_open: bool = False) -> None:
    """All results of these sequences, compiled for inputs of these sizes or for any number of rows."""

    def run(some: Sequence[Sequential]) -> list[np.ndarray]:
        return check.by_this_package(some, is_open)

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
def test_pairs_of_sixteen_bits(group: int) -> None:
    """Beside those of eight; the QLinear operators have none."""
    found = [pair for pair in GROUPS[group] if not any(pairs.NAMES[i] in pairs.QLINEAR for i in pair)]
    assert_allowed(drawn(found, types=("uint8", "int8", "uint16", "int16")))


#: operators after which the first axis is still the rows, and there are four
KEEPS_ROWS = [
    name
    for name in pairs.NAMES
    if name not in ("Transpose", "Reshape", "Gemm", "ReduceMean without axes", "LayerNormalization", "MatMul of two")
]


def chains(group: int, names: list[str], lengths: tuple[int, int], **options: Any) -> list[Sequential]:
    """Longer sequences of any of these operators."""
    rng, found = np.random.default_rng(group), []
    while len(found) < _TOGETHER:
        chain = [str(name) for name in rng.choice(names, int(rng.integers(*lengths)))]
        seed = [group, len(found), *rng.integers(0, 1 << 16, 1).tolist()]
        with contextlib.suppress(NotImplementedError):
            found.append(pairs.sequence(chain, seed, f"s{len(found)}_", powers=bool(len(found) % 2), **options))
    return found


@pytest.mark.parametrize("group", parameters(2 * _SHARE)[: len(GROUPS) // 4])
def test_longer_sequences(group: int) -> None:
    assert_allowed(chains(group, pairs.NAMES, (3, 8)))


@pytest.mark.parametrize("group", parameters(2 * _SHARE)[: len(GROUPS) // 4])
def test_sequences_of_any_number_of_rows(group: int) -> None:
    assert_allowed(chains(group, KEEPS_ROWS, (2, 4), moves=False), is_open=True)


@pytest.mark.parametrize("isa", ["SSE41", "AVX2", pytest.param("AVX512_CORE", marks=pytest.mark.sweep)])
def test_an_older_instruction_set(isa: str) -> None:
    """In a process of its own, since oneDNN reads the limit once; a CPU with less has what it has."""
    program = (
        "from tests.conformance.quantised.test_sequences import GROUPS, assert_allowed, drawn\n"
        "for group in (1, 2, 3):\n"
        "    for powers in (False, True):\n"
        "        assert_allowed(drawn(GROUPS[group], powers=powers))\n"
    )
    env = {**os.environ, "ONEDNN_MAX_CPU_ISA": isa}
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run([sys.executable, "-c", program], env=env, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("group", parameters(2 * _SHARE))
def test_onnx_runtime_is_within_the_bounds(group: int) -> None:
    """Of operators between conversions: its own quantised ones are coarser, and saturate on some CPUs."""
    sequences = [s for s in drawn(GROUPS[group]) if not any(node.op_type.startswith("QLinear") for node in s.nodes)]
    assert sequences
    wrong = check.problems(sequences, check.by_onnx_runtime(sequences))
    assert not wrong, "\n".join(check.explain(sequences[place], check.by_onnx_runtime) for place in wrong)
