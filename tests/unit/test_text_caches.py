"""The caches of conversations: each has its own rows, whoever is read together."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tvm_byoc_dnnl.text.caches import Caches, Conversation

#: the cache before the first token, and whether compiled code may append to it in place
KINDS = {
    "grows": (np.zeros((1, 2, 0, 4), "float32"), False),
    "grows in place": (np.zeros((1, 2, 0, 4), "float32"), True),
    "in place, rows first": (np.zeros((1, 0, 6), "int8"), True),
    "a state": (np.zeros((1, 3, 2), "float32"), False),
}


@pytest.mark.native
@pytest.mark.parametrize(("empty", "in_place"), KINDS.values(), ids=KINDS)
def test_each_conversation_has_its_own_rows(empty: np.ndarray, in_place: bool) -> None:
    draw, numbers = random.Random(0), np.random.default_rng(0)
    caches = Caches({"k": empty}, {"k"} if in_place else ())
    axis = empty.shape.index(0) if 0 in empty.shape else None
    texts: list[Conversation] = []
    rows: dict[Conversation, np.ndarray] = {}
    for _ in range(120):
        texts = [c for c in texts if not c.is_over]
        texts += [Conversation(()) for _ in range(9 - len(texts))]
        chosen = draw.sample(texts, draw.choice([1, 1, 2, 3, 4]))
        new = draw.choice([1, 3, 20]) if len(chosen) == 1 else 1
        group = caches.group(chosen, new)
        past = group.caches["k"]
        past = past if isinstance(past, np.ndarray) else np.from_dlpack(past)
        members = [c for c in group.members if c is not None]
        assert {*members} == {*chosen}
        most = max(c.length for c in members)
        shape = [len(chosen), *(size or most + new for size in empty.shape[1:])]
        present = np.zeros(shape, empty.dtype)
        for row, c in enumerate(members):
            own = rows.get(c, empty[0])
            cut = () if axis is None else (*[slice(None)] * (axis - 1), slice(c.length))
            np.testing.assert_array_equal(past[row][cut], own)
            if axis is not None:
                assert past.shape[axis] == most
                assert not np.delete(past[row], np.s_[: c.length], axis - 1).any()  # rows that another one has
            size = [size or new for size in empty.shape[1:]]
            value = numbers.integers(1, 99, size).astype(empty.dtype)
            rows[c] = value if axis is None else np.concatenate([own, value], axis - 1)
            c.length += new
            present[row][() if axis is None else (*cut[:-1], slice(c.length))] = rows[c]
        if in_place and draw.random() < 0.7:
            first = members[0].slot
            memory = caches._memory["k"][(slice(first, first + len(chosen)), *map(slice, shape[1:]))]
            memory[:] = present
            present = memory
        group.caches = {"k": present}
        for c in draw.sample(texts, draw.choice([0, 0, 1])):
            c.is_over = True
    assert len(caches._owners) < 20  # the slots of those that are over are used again


def test_the_memory_becomes_smaller_again() -> None:
    caches = Caches({"k": np.zeros((1, 2, 0, 4), "float32")}, ())
    texts = [Conversation(()) for _ in range(8)]
    shapes = []
    for c, length in zip(texts, (3, 900, 5, 5, 5, 5, 5, 5), strict=True):
        caches.group([c], length).caches = {"k": np.zeros((1, 2, length, 4), "float32")}
        c.length = length
    for over in (4, 2, 1):
        for c in texts[1 + over : 8]:
            c.is_over = True
        caches.group(texts[: 1 + over], 1)
        shapes.append(caches._memory["k"].shape)
    texts[1].is_over = True
    caches.group([texts[0]], 61)
    shapes.append(caches._memory["k"].shape)
    assert shapes == [(8, 2, 1024, 4)] * 3 + [(1, 2, 64, 4)]
