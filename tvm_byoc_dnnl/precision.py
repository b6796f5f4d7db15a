"""The arguments ``precision`` and ``weights``: short for options of the compilers that have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .errors import InputError
from .namespaces import compilers, namespace
from .prepare.compression import BITS

__all__ = ["PRECISIONS", "WEIGHTS", "with_precision"]

Options = Mapping[str, Mapping[str, Any]]

#: the dtype in which regions compute; `auto` is the fastest that the CPU has itself
PRECISIONS = ("float32", "bfloat16", "auto")
#: the dtypes of compressed weights
WEIGHTS = tuple(BITS)


def with_precision(
    compiler: str | Sequence[str] | None,
    options: Options | None,
    precision: str = "float32",
    weights: str | None = None,
) -> Options:
    """``options`` with these two for each compiler that has them.

    Raises
    ------
    InputError
        If a value is unknown, or none of the compilers has the option.
    """
    _check("precision", precision, PRECISIONS)
    wanted = {} if precision == PRECISIONS[0] else {"precision": precision}
    if weights is not None:
        _check("weights", weights, (None, *WEIGHTS))
        wanted["weights"] = weights
    result = {name: dict(values) if isinstance(values, Mapping) else values for name, values in (options or {}).items()}
    names = [compiler] if isinstance(compiler, str) else list(compiler or compilers())
    for option, value in wanted.items():
        able = [name for name in names if option in namespace(name).options()]
        if not able:
            raise InputError(
                f"{option} is {value!r}, but {', '.join(names)} has no such option; leave it out, or use a compiler "
                "that has it"
            )
        for name in able:
            result[name] = {**result.get(name, {}), option: value}
    return result


def _check(name: str, value: Any, allowed: Sequence[Any]) -> None:
    if value not in allowed:
        raise InputError(f"{name} is {value!r}; expected one of {', '.join(map(repr, allowed))}")
