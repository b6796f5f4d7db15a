"""Which regions are worth a call: by their arithmetic, the bytes that cross their border, and what the user says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

__all__ = ["RegionPolicy", "Work"]


@dataclass(frozen=True)
class Work:
    """What a region does: operations, and bytes of the arguments and results that cross its border."""

    flops: int
    bytes: int
    calls: int


@dataclass(frozen=True)
class RegionPolicy:
    """What is worth a region of its own. The plain ``RegionPolicy()`` takes everything that a compiler accepts.

    A region costs a call, a pass over its arguments and results, perhaps their change of layout, and the fusion of its
    calls with their neighbours in TVM. A single addition between two calls of TVM does not earn that.

    Parameters
    ----------
    min_flops : int
        Regions with fewer operations stay with TVM.
    min_intensity : float
        Regions with fewer operations per byte of their arguments and results stay with TVM.
    exclude : sequence of str
        Calls that are not offloaded: operators (``"relax.nn.softmax"``), names of variables that hold results, or names
        of patterns (``"vendor.pattern"``); ``*`` and ``?`` match as in a shell.
    force : sequence of str
        Calls, named alike, whose region is offloaded whatever it is worth. A compiler still has to accept them.
    max_regions : int, optional
        At most so many regions in the module: those with the most operations.
    """

    min_flops: int = 0
    min_intensity: float = 0.0
    exclude: Sequence[str] = ()
    force: Sequence[str] = ()
    max_regions: int | None = None

    def __post_init__(self) -> None:
        for name in ("exclude", "force"):
            value = getattr(self, name)
            if isinstance(value, str) or not all(isinstance(v, str) for v in value):
                raise TypeError(f"{name} is {value!r}; expected a sequence of names such as ['relax.nn.softmax']")
        if self.max_regions is not None and self.max_regions < 0:
            raise ValueError(f"max_regions is {self.max_regions}; expected a number of regions, or None for any")

    def excluded_by(self, names: Sequence[str]) -> str:
        """The entry of ``exclude`` that one of a call's names matches, ``""`` for none."""
        return next((e for e in self.exclude if any(fnmatchcase(n, e) for n in names)), "")

    def forces(self, names: Sequence[str]) -> bool:
        """Whether an entry of ``force`` matches one of a call's names."""
        return any(fnmatchcase(n, f) for n in names for f in self.force)

    def why_not(self, work: Work) -> str:
        """Why a region is not worth it, ``""`` when it is."""
        if work.flops < self.min_flops:
            return f"{work.calls} call(s) with {work.flops} operations; a region needs {self.min_flops}"
        if work.flops < self.min_intensity * work.bytes:
            return (
                f"{work.calls} call(s) with {work.flops} operations on {work.bytes} bytes that cross the region's "
                f"border; a region needs {self.min_intensity:g} per byte"
            )
        return ""
