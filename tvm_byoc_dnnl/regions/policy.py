"""Policies: the regions that are worth a call, by their arithmetic, their bytes, and the user's choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

from ..core.errors import ArgumentTypeError, InputError
from . import cost


@dataclass(frozen=True)
class Work:
    """The calls of a region and its neighbours; what is derived from them is computed when a policy asks for it.

    Attributes
    ----------
    calls : sequence of relax.Call
        The calls.
    crossing : sequence of Expr
        The arguments and results.
    neighbours : frozenset of str
        The compilers of the calls that make an argument or read a result, ``"tvm"`` among them.
    is_beside_host : bool
        A call that stays with TVM makes an argument, or reads a result.
    sizes : mapping of str to int
        The sizes of symbols for which the model is optimised; others count as 1.
    """

    calls: Sequence[Any] = ()
    crossing: Sequence[Any] = ()
    neighbours: frozenset[str] = frozenset()
    is_beside_host: bool = False
    sizes: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def flops(self) -> int:
        """Operations."""
        return sum(cost.call_flops(call, self.sizes) for call in self.calls)

    @cached_property
    def bytes(self) -> int:
        """Size of the arguments and results."""
        return sum(cost.type_bytes(value.ty, self.sizes) for value in self.crossing)

    @cached_property
    def ops(self) -> Sequence[str]:
        """Operators, each once."""
        return list(dict.fromkeys(call.op.name for call in self.calls))

    @cached_property
    def is_cheap(self) -> bool:
        """Whether it has only copies and cheap elementwise calls."""
        return all(map(cost.is_cheap, self.calls))


@dataclass(frozen=True)
class RegionPolicy:
    """Decides which calls are worth a region. The plain ``RegionPolicy()`` takes all that a compiler accepts.

    A region has a cost: a call, reading its arguments and writing its results, perhaps changes of their layout, and TVM
    can no longer fuse its calls with their neighbours. A single addition between two calls of TVM is not worth that.

    Parameters
    ----------
    min_flops : int
        Regions with fewer operations stay with TVM.
    min_intensity : float
        Regions with fewer operations per byte of their arguments and results stay with TVM.
    cheap_beside_host : bool
        Whether regions of only copies, additions, comparisons and the like are formed beside calls that stay
        with TVM, which would fuse them.
    exclude : sequence of str
        Calls that are not offloaded: operators (``"relax.nn.softmax"``), names of variables that hold results, or names
        of patterns (``"vendor.pattern"``); ``*`` and ``?`` match as in a shell.
    force : sequence of str
        Calls, named in the same way, whose region is offloaded whatever it is worth. A compiler must still accept them.
    max_regions : int, optional
        At most so many regions in the module: those with the most operations. In a namespace's own policy, at most so
        many of its own.
    on_top : bool
        Whether the namespaces' own policies hold too, as ``RegionPolicy(exclude=[...], on_top=True)`` excludes and
        changes nothing else; otherwise this policy stands in their place.
    """

    min_flops: int = 0
    min_intensity: float = 0.0
    cheap_beside_host: bool = True
    exclude: Sequence[str] = ()
    force: Sequence[str] = ()
    max_regions: int | None = None
    on_top: bool = False

    def __post_init__(self) -> None:
        for name in ("exclude", "force"):
            value = getattr(self, name)
            if isinstance(value, str) or not all(isinstance(v, str) for v in value):
                raise ArgumentTypeError(
                    f"{name} is {value!r}; expected a sequence of names such as ['relax.nn.softmax']"
                )
        if self.max_regions is not None and self.max_regions < 0:
            raise InputError(f"max_regions is {self.max_regions}; expected a number of regions, or None for any")

    def excluded_by(self, names: Sequence[str]) -> str:
        """The entry of ``exclude`` that one of a call's names matches, ``""`` for none."""
        return next((e for e in self.exclude if any(fnmatchcase(n, e) for n in names)), "")

    def forces(self, names: Sequence[str]) -> bool:
        """Whether an entry of ``force`` matches one of a call's names."""
        return any(fnmatchcase(n, f) for n in names for f in self.force)

    def why_not(self, work: Work) -> str:
        """The reason why a region is not worth a call, ``""`` when it is."""
        reason = self._too_little(work)
        return f"{', '.join(work.ops)}: {reason}" if reason else ""

    def _too_little(self, work: Work) -> str:
        if not self.cheap_beside_host and work.is_beside_host and work.is_cheap:
            return "nothing but cheap calls beside calls that stay with TVM, which fuses them"
        if self.min_flops and work.flops < self.min_flops:
            return f"{work.flops} operations, fewer than min_flops={self.min_flops}"
        if self.min_intensity and work.flops < self.min_intensity * work.bytes:
            return (
                f"{work.flops} operations on {work.bytes} bytes that cross the region's border, fewer than "
                f"min_intensity={self.min_intensity:g} per byte"
            )
        return ""


def with_names(
    policy: RegionPolicy | None, exclude: Sequence[str] = (), force: Sequence[str] = ()
) -> RegionPolicy | None:
    """The policy, or those of the namespaces, and calls that are excluded and forced besides.

    Raises
    ------
    ArgumentTypeError
        If they are no names.
    """
    if not exclude and not force:
        return policy
    named = RegionPolicy(exclude=exclude, force=force, on_top=True)
    if policy is None:
        return named
    return replace(policy, exclude=[*policy.exclude, *exclude], force=[*policy.force, *force])
