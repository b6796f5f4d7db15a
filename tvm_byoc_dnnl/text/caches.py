"""The caches of conversations: those of a step lie side by side, so that joining and leaving a batch copies nothing."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..core import _native
from ..core.arguments import as_view
from ..runtime.machines import trim

__all__ = ["Caches", "Conversation"]

_LEAST_ROOM = 64
#: times the rows that there are, for which there is room at most: memory that is not written takes no space, and to
#: move rows takes as long as many steps
_AHEAD = 4


class Conversation:
    """Tokens that a decoder has read, or is to read.

    Attributes
    ----------
    unread : list of int
        Tokens that come next.
    length : int
        The number of those that were read.
    most : int
        The number that will be read at most, if it is known.
    is_over : bool
        Whether no further ones will be read.
    slot : int
        Where its caches are, once it has some.
    """

    def __init__(self, unread: Iterable[int], most: int = 0) -> None:
        self.unread, self.length, self.is_over, self.slot, self.most = list(unread), 0, False, -1, most


class Group:
    """Conversations of one step, in the order of their slots, and their caches: what the last step gave."""

    def __init__(self, members: Sequence[Conversation], caches: dict[str, Any]) -> None:
        self._members = [*map(weakref.ref, members)]
        self.caches = caches

    @property
    def members(self) -> list[Conversation | None]:
        return [member() for member in self._members]


class Caches:
    """Memory with a slot for each conversation, which becomes larger and smaller as they need it.

    Parameters
    ----------
    empty : mapping
        Name → the cache of one conversation before its first token; an axis without rows is the one that grows.
    grown : collection of str
        Those to which compiled code appends in place.
    """

    def __init__(self, empty: Mapping[str, np.ndarray], grown: Collection[str]) -> None:
        self._empty = empty
        self._axes = {past: a.shape.index(0) for past, a in empty.items() if 0 in a.shape}
        self._grown = {past for past in grown if self._axes.get(past)}
        self.clear()

    def clear(self) -> None:
        """Free the memory; no conversation has a part in it any more."""
        self._owners: list[weakref.ref[Conversation] | None] = []
        self._room = 0
        self._memory: dict[str, np.ndarray] = {}
        self._tensors: dict[str, Any] = {}  # the same memory, of those that are grown
        self._groups: list[Group] = []

    def group(self, conversations: Sequence[Conversation], rows: int) -> Group:
        """What a step needs that reads so many tokens of each."""
        most = max(c.length for c in conversations)
        known = next((g for g in self._groups if {*g.members} == {*conversations}), None)
        if known is not None and most + rows <= self._room:
            return known
        self._settle(conversations, most + rows)
        members = sorted(conversations, key=lambda c: c.slot)
        made = Group(members, {past: self._shown(past, members, most) for past in self._empty})
        self._groups.append(made)
        return made

    def _settle(self, conversations: Sequence[Conversation], room: int) -> None:
        """Give them slots side by side, with room for so many rows; as few as possible are moved."""
        alive = [None if owner is None else owner() for owner in self._owners]
        owners = [c if c is None or c in conversations or not c.is_over else None for c in alive]
        count, lacking = len(conversations), sum(c not in owners for c in conversations) - owners.count(None)
        needed = max([room, *(c.length for c in owners if c is not None)])
        final = max(c.most for c in [*conversations, *owners] if c is not None)
        fits = max(_LEAST_ROOM, 1 << (max(needed, min(final, _AHEAD * needed)) - 1).bit_length())
        changes = lacking > 0 or not needed <= self._room <= _AHEAD * fits
        while changes and lacking < 0 and owners[-1] is None:
            owners.pop()
            lacking += 1
        if lacking > 0:
            owners += [None] * max(lacking, len(owners))
        ranked = [
            (sum(c in conversations for c in part), part.count(None), -first)
            for first in range(len(owners) - count + 1)
            for part in [owners[first : first + count]]
        ]
        first = -max(ranked)[2]
        inside, outside = owners[first : first + count], owners[:first] + owners[first + count :]
        coming = [c for c in conversations if c not in inside]
        after: list[Conversation | None] = [c if c in conversations else coming.pop(0) for c in inside]
        rest = [None if c in conversations else c for c in outside]
        for c in inside:
            if c is not None and c not in conversations:
                rest[rest.index(None)] = c
        after = rest[:first] + after + rest[first:]
        moved = {c for before, c in zip(owners, after, strict=True) if c is not before}
        for group in self._groups:
            if changes or not {*conversations, *moved}.isdisjoint(group.members):
                self._write_back(group, owners)
                group.caches = {}
        self._groups = [group for group in self._groups if group.caches]
        if changes:
            self._room = fits
            self._resize(owners)
        self._take(owners, after)

    def _take(self, before: Sequence[Conversation | None], after: Sequence[Conversation | None]) -> None:
        """Move the caches of those that get another slot, and begin those of new ones."""
        changed = [(slot, c) for slot, c in enumerate(after) if c is not None and before[slot] is not c]
        for past, memory in self._memory.items():
            first = self._empty[past][0] if past not in self._axes else 0
            moved = [memory[self._part(past, c.slot, c.length)].copy() if c in before else first for _, c in changed]
            for (slot, c), value in zip(changed, moved, strict=True):
                memory[self._part(past, slot, c.length)] = value
        for slot, c in changed:
            c.slot = slot
        self._owners = [None if c is None else weakref.ref(c) for c in after]

    def _part(self, past: str, slot: int, end: int, start: int = 0) -> tuple[Any, ...]:
        """The index of rows of a conversation in the memory; of all of it where it does not grow."""
        axis = self._axes.get(past, 0)
        return (slot, *(slice(None) for _ in range(axis - 1)), slice(start, end)) if axis else (slot,)

    def _resize(self, owners: Sequence[Conversation | None]) -> None:
        for past, one in self._empty.items():
            shape = (len(owners), *(size or self._room for size in one.shape[1:]))
            old = self._memory.pop(past, None)
            if past in self._grown:
                make = _native.function("tvm_byoc_dnnl.NewCache")
                tensor = make(shape, self._axes[past], str(one.dtype))
                new = as_view(tensor)
                self._tensors[past] = tensor
            else:
                new = np.zeros(shape, one.dtype)
            for c in owners:
                if c is not None and old is not None:
                    part = self._part(past, c.slot, c.length)
                    new[part] = old[part]
            self._memory[past] = new
        trim()  # what was freed lies in pieces too small for the next caches

    def _shown(self, past: str, members: Sequence[Conversation], most: int) -> Any:
        """The caches of conversations side by side; rows that some have more of are 0 in the others."""
        first, lengths = members[0].slot, [c.length for c in members]
        if past in self._grown:
            return _native.function("tvm_byoc_dnnl.ShowCache")(self._tensors[past], self._axes[past], first, lengths)
        memory = self._memory[past]
        if past in self._axes:
            for c in members:
                memory[self._part(past, c.slot, most, c.length)] = 0
        part = (slice(first, first + len(members)), *self._part(past, 0, most)[1:])
        return memory[part]

    def _write_back(self, group: Group, owners: Sequence[Conversation | None]) -> None:
        """Keep what the last step gave, where that is other memory."""
        for past, cache in group.caches.items():
            memory = self._memory[past]
            given = cache if isinstance(cache, np.ndarray) else as_view(cache)
            if not np.may_share_memory(given, memory):
                for row, c in enumerate(group.members):
                    if c is not None and c in owners:
                        memory[self._part(past, c.slot, c.length)] = given[self._part(past, row, c.length)]
