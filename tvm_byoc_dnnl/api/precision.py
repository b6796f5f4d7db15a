"""The arguments of `ARGUMENTS`: short for options of the compilers that have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..core.errors import InputError
from ..core.expected import one_of
from ..prepare.compression import ACTIVATIONS, BITS
from ..vendors.namespaces import compilers, namespace

Options = Mapping[str, Mapping[str, Any]]

#: the dtype in which regions compute; `auto` is the fastest that the CPU has itself
PRECISIONS = ("float32", "bfloat16", "auto")
#: the dtypes of compressed weights
WEIGHTS = tuple(BITS)
#: sums of 8-bit products: always exact, or as fast as the CPU can, which may saturate at 16 bits
INT8 = ("exact", "saturating")
#: argument → its values, the default first
ARGUMENTS: Mapping[str, tuple[str | None, ...]] = {
    "precision": PRECISIONS,
    "weights": (None, *WEIGHTS),
    "activations": (None, *ACTIVATIONS),
    "int8": INT8,
}


def with_precision(
    compiler: str | Sequence[str] | None,
    options: Options | None,
    arguments: Mapping[str, Any],
) -> Options:
    """``options`` with those of `ARGUMENTS` that ``arguments`` has, for each compiler that has them.

    Raises
    ------
    InputError
        If a value is unknown, or none of the compilers has the option.
    """
    wanted = {}
    for option, allowed in ARGUMENTS.items():
        value = arguments.get(option, allowed[0])
        one_of(option, value, allowed)
        if value != allowed[0]:
            wanted[option] = value
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
