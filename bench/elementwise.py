"""The error of each elementwise function over all numbers of float32: ``python -m bench.elementwise [NAME ...]``.

A compiled function of one call gets all 2^32 bit patterns in chunks, and each result is compared with NumPy's (or the C
library's) in float64. That takes minutes for each function; ``--every 17`` takes each 17th number only. What is done
stands in a file, from which the next run goes on. The page docs/numerics.md gets a table of what is complete.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import tvm
from tvm import relax, te, tirx

import tvm_byoc_dnnl as byoc
from tvm_byoc_dnnl.core._native import engine_info
from tvm_byoc_dnnl.core.machine import cpu_name
from tvm_byoc_dnnl.ir.relax_utils import codegen_of

__all__ = ["FUNCTIONS", "Error", "errors", "main", "page", "runners"]

PAGE, RECORD = Path("docs/numerics.md"), Path("docs/elementwise.json")
_MARKS = ("<!-- elementwise errors: written by make docs-elementwise -->\n", "<!-- end of elementwise errors -->\n")
_HEAD = (
    "| function | by | units in the last place, at most | of results below 6e-5 | other ∞ or NaN | numbers |\n"
    "|---|---|---|---|---|---|\n"
)
_ALL = 1 << 32
_CHUNK = 1 << 24
_CALL = 1 << 18  # numbers of one call
#: results from here on are judged by units in the last place, smaller ones by their distance
SMALL = 2.0**-14

op, nn = relax.op, relax.op.nn
Function = Callable[[np.ndarray], np.ndarray]
#: machine → function → which numbers, engine → errors
State = dict[str, dict[str, tuple[int, dict[str, dict[str, Any]]]]]


def _number(value: float) -> Any:
    return relax.const(np.float32(value))


@functools.cache
def _of_library(name: str) -> Function:
    """A function of the C library in float64, which NumPy does not have."""
    size = te.var("n", "int64")
    x = te.placeholder((size,), "float64")
    y = te.compute((size,), lambda i: tirx.call_pure_extern("float64", name, x[i]))
    call = tvm.compile(te.create_prim_func([x, y]), target="llvm")

    def of(values: np.ndarray) -> np.ndarray:
        out = tvm.runtime.tensor(np.empty_like(values))
        call(tvm.runtime.tensor(values), out)
        return out.numpy()

    return of


def _sigmoid(x: np.ndarray) -> np.ndarray:
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, 1) / (1 + e)


def _softplus(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * _of_library("erfc")(-x / math.sqrt(2))


def _gelu_tanh(x: np.ndarray) -> np.ndarray:
    return x * _sigmoid(math.sqrt(8 / math.pi) * (x + 0.044715 * x**3))


def _selu(x: np.ndarray) -> np.ndarray:
    return 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x))


def _mish(x: Any) -> Any:
    return op.multiply(x, op.tanh(nn.softplus(x)))


def _elu(x: Any) -> Any:
    return op.subtract(nn.relu(x), nn.relu(op.subtract(_number(1), op.exp(x))))


#: name → the call, the function in float64
FUNCTIONS: dict[str, tuple[Callable[[Any], Any], Function]] = {
    "acos": (op.acos, np.arccos),
    "acosh": (op.acosh, np.arccosh),
    "asin": (op.asin, np.arcsin),
    "asinh": (op.asinh, np.arcsinh),
    "atan": (op.atan, np.arctan),
    "atanh": (op.atanh, np.arctanh),
    "ceil": (op.ceil, np.ceil),
    "cos": (op.cos, np.cos),
    "cosh": (op.cosh, np.cosh),
    "elu": (_elu, lambda x: np.where(x > 0, x, np.expm1(x))),
    "erf": (op.erf, lambda x: _of_library("erf")(x)),
    "exp": (op.exp, np.exp),
    "floor": (op.floor, np.floor),
    "gelu": (nn.gelu, _gelu),
    "gelu_tanh": (nn.gelu_tanh, _gelu_tanh),
    "log": (op.log, np.log),
    "mish": (_mish, lambda x: x * np.tanh(_softplus(x))),
    "round": (op.round, np.round),
    "rsqrt": (op.rsqrt, lambda x: 1 / np.sqrt(x)),
    "selu": (nn.selu, _selu),
    "sigmoid": (op.sigmoid, _sigmoid),
    "silu": (nn.silu, lambda x: x * _sigmoid(x)),
    "sin": (op.sin, np.sin),
    "sinh": (op.sinh, np.sinh),
    "softplus": (nn.softplus, _softplus),
    "sqrt": (op.sqrt, np.sqrt),
    "square": (op.square, np.square),
    "tan": (op.tan, np.tan),
    "tanh": (op.tanh, np.tanh),
    "trunc": (op.trunc, np.trunc),
    "x / 3": (lambda x: op.divide(x, _number(3)), lambda x: x / 3),
    "x / 49": (lambda x: op.divide(x, _number(49)), lambda x: x / 49),
    "3 / x": (lambda x: op.divide(_number(3), x), lambda x: 3 / x),
    "x ^ -1": (lambda x: op.power(x, _number(-1)), lambda x: 1 / x),
    "x ^ 0.5": (lambda x: op.power(x, _number(0.5)), np.sqrt),
    "x ^ 2.5": (lambda x: op.power(x, _number(2.5)), lambda x: np.power(x, 2.5)),
    "x ^ 3": (lambda x: op.power(x, _number(3)), lambda x: x * x * x),
    "2 ^ x": (lambda x: op.power(_number(2), x), np.exp2),
}


class Error:
    """The largest errors so far: in units in the last place, and of small results; and results that are no numbers."""

    def __init__(self, state: dict[str, Any] | None = None) -> None:
        self.state = state or {"units": 0.0, "at": 0.0, "small": 0.0, "small_at": 0.0, "odd": 0, "odd_at": 0.0}

    def add(self, x: np.ndarray, got: np.ndarray, want: np.ndarray) -> None:
        """Compare results with the exact ones in float64."""
        with np.errstate(all="ignore"):
            nearest = want.astype("float32")
        off = np.flatnonzero((got != nearest) & ~(np.isnan(got) & np.isnan(nearest)))
        if not off.size:
            return
        x, got, want, nearest = x[off], got[off], want[off], nearest[off]
        distance = np.abs(got.astype("float64") - want)
        is_odd = ~np.isfinite(distance) | ~np.isfinite(nearest)
        if is_odd.any():
            self.state["odd"] += int(is_odd.sum())
            self.state["odd_at"] = float(x[np.argmax(is_odd)])
        is_small = np.abs(want) < SMALL
        with np.errstate(all="ignore"):
            units = distance / np.spacing(np.abs(nearest))
        self._largest("small", "small_at", np.where(is_small & ~is_odd, distance, 0), x)
        self._largest("units", "at", np.where(is_small | is_odd, 0, units), x)

    def _largest(self, key: str, place: str, errors: np.ndarray, x: np.ndarray) -> None:
        at = int(np.argmax(errors))
        if errors[at] > self.state[key]:
            self.state.update({key: float(errors[at]), place: float(x[at])})


def _module(build: Callable[[Any], Any]) -> tvm.IRModule:
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((_CALL,), "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            out = bb.emit_output(bb.emit(build(x)))
        bb.emit_func_output(out)
    return bb.get()


def runners(name: str) -> dict[str, Function]:
    """The function compiled for TVM, and with dnnl if that takes it."""
    mod = _module(FUNCTIONS[name][0])
    made: dict[str, Function] = {}
    policy = byoc.RegionPolicy()
    offloaded = any(map(codegen_of, byoc.partition(mod, "dnnl", policy=policy).functions.values()))
    for engine in ("dnnl", "TVM") if offloaded else ("TVM",):
        run = byoc.Runner(byoc.compile(mod, ["dnnl"] if engine == "dnnl" else [], policy=policy))
        made[engine] = lambda x, run=run: np.asarray(run(x))  # type: ignore[misc]
    return made


def errors(name: str, patterns: Iterator[np.ndarray], engines: dict[str, Function], known: dict[str, Error]) -> None:
    """Add the errors for these bit patterns, arrays of `_CALL` numbers, to those that are known of each engine."""
    for bits in patterns:
        x = bits.view("float32")
        with np.errstate(all="ignore"):
            want = FUNCTIONS[name][1](x.astype("float64"))
        for engine, run in engines.items():
            known[engine].add(x, run(x), want)


def _patterns(first: int, last: int, every: int) -> Iterator[np.ndarray]:
    for start in range(first, last, _CALL * every):
        yield (start + every * np.arange(_CALL, dtype="uint64")).astype("uint32")  # those beyond the end wrap


def _row(name: str, engine: str, error: dict[str, Any], numbers: str = "") -> str:
    units = f"{error['units']:.3g} at {error['at']:.7g}" if error["units"] else "0.5"
    small = f"{error['small']:.2g} at {error['small_at']:.7g}" if error["small"] else "rounding"
    odd = f"{error['odd']:,}, as at {error['odd_at']:.7g}" if error["odd"] else "none"
    return f"| `{name}` | {engine} | {units} | {small} | {odd} | {numbers} |\n"


def page(measured: State, text: str) -> str:
    """The page with a table for each machine."""
    tables = ""
    for where, functions in sorted(measured.items()):
        tables += f"\n{where}:\n\n{_HEAD}"
        for name, (every, done) in functions.items():
            numbers = "all" if every == 1 else f"each {every}th"
            tables += "".join(_row(name, engine, error, numbers) for engine, error in done.items())
    begin, end = (re.escape(mark) for mark in _MARKS)
    return re.sub(f"({begin}).*?({end})", lambda m: f"{m[1]}{tables}\n{m[2]}", text, flags=re.DOTALL)


def _complete(name: str, every: int, state: Path) -> dict[str, dict[str, Any]]:
    """The errors of a function; what is done of it stands in the file ``state``, and again after each chunk."""
    key = f"{name} {every}"
    known = json.loads(state.read_text()) if state.exists() else {}
    begun = known.get(key, {"next": 0, "engines": {}})
    engines = runners(name)
    found = {engine: Error(begun["engines"].get(engine)) for engine in engines}
    for first in range(begun["next"], _ALL, _CHUNK * every):
        errors(name, _patterns(first, min(first + _CHUNK * every, _ALL), every), engines, found)
        done = {"next": first + _CHUNK * every, "engines": {engine: e.state for engine, e in found.items()}}
        state.parent.mkdir(parents=True, exist_ok=True)
        state.write_text(json.dumps({**known, key: done}))
    return {engine: error.state for engine, error in found.items()}


@click.command(context_settings={"show_default": True})
@click.argument("names", nargs=-1)
@click.option("--every", default=1, help="Take each so-manieth number only.")
@click.option("--state", default="build/elementwise", type=click.Path(path_type=Path), help="Folder: what is done.")
def main(names: tuple[str, ...], every: int, state: Path) -> None:
    """Measure the errors of NAMES, by default of all functions, and write the page."""
    isa = engine_info("dnnl")["isa"]
    for name in names or FUNCTIONS:
        done = _complete(name, every, state / f"{isa}.json")
        click.echo("".join(_row(name, engine, error) for engine, error in done.items()), nl=False)
        measured: State = json.loads(RECORD.read_text()) if RECORD.exists() else {}
        rows = measured.setdefault(f"{cpu_name()}, {isa}", {})
        if name not in rows or rows[name][0] >= every:
            rows[name] = (every, done)
        RECORD.write_text(json.dumps(measured, indent=1, sort_keys=True) + "\n")
        PAGE.write_text(page(measured, PAGE.read_text()))


if __name__ == "__main__":
    main(prog_name="python -m bench.elementwise")
