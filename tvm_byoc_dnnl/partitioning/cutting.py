"""Where a region is cut that is too large: how many of its calls can stay together, and the cheapest place before that.

A limit of the memory, of the operators or of the arguments is one answer for a whole region, so it is found by
questions about the first calls: by bisection, and then around the size of the region before, because equal limits give
regions of nearly equal sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvm import relax

from ..core.vendor_code import calling
from ..core.verdict import Reject, as_reject
from ..regions import cost
from ..regions.blocks import Block
from ..regions.failure import Failure, describe
from ..vendors.namespace import Namespace
from ..vendors.quantised_groups import looking_at

__all__ = ["bytes_between", "cheapest_place", "longest", "why_not_fits"]

#: what a further region costs beside the bytes that cross its border, in bytes
_CALL_OF_A_REGION = 64


def why_not_fits(ns: Namespace, region: relax.Function, options: Mapping[str, Any]) -> Failure | None:
    """What the ``fits`` of a namespace has against a region."""
    if ns.fits is None:
        return None
    who = f"fits of {ns.name!r}"
    try:
        with calling(who), looking_at(region):
            answer = ns.fits(region.with_attr({"Codegen": ns.name, "global_symbol": "trial"}), dict(options))
        refusal = as_reject(answer, who)
    except Exception as error:
        refusal = error if isinstance(error, Reject) else Reject(f"{who}: {describe(error)}")
    return None if refusal is None else Failure("fits", refusal.reason)


def longest(works: Callable[[int], bool], count: int, guess: int) -> int:
    """The largest number of first calls that work together, as far as more calls work less.

    Parameters
    ----------
    works : callable
        ``works(number)``: whether the first ``number`` calls work.
    count : int
        How many there are.
    guess : int
        The number that is asked about first, 0 where nothing is known.
    """
    good, bad = 0, count + 1
    step, probe = 1, guess if 0 < guess < count else count
    while bad - good > 1:
        if works(probe):
            good = probe
        else:
            bad = probe
        if (good and bad <= count) or not guess:
            probe = (good + bad) // 2
        else:  # on from the guess, twice as far each time
            probe = min(good + step, count) if good else max(bad - step, 1)
            step *= 2
    return good


def bytes_between(block: Block, before: Sequence[Any], after: Sequence[Any], sizes: Any) -> int:
    """The bytes of the results of ``before`` that ``after`` reads."""
    made = {b.var for b in before}
    return sum(cost.type_bytes(v.ty, sizes) for v in block.inputs(after) if v in made)


def cheapest_place(most: int, crossing: Callable[[int], int]) -> int:
    """The number of first calls to cut off, at most ``most``: the cheapest border for each call that it gets done."""
    return min(range(most, 0, -1), key=lambda at: (_CALL_OF_A_REGION + crossing(at)) / at)
