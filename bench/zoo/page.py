"""The page of measured models, written from results that are kept as JSON beside it."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from . import ZOO
from .measure import FORMS, Result

__all__ = ["from_dict", "load", "render", "save", "to_dict"]

_HEAD = """# Models, measured

`make docs-models` measures the models, writes the results to [models.json](models.json), and writes this page from
them. Every model is imported, prepared, partitioned, compiled and run in a process of its own, and its outputs are
compared with those of ONNX Runtime without graph optimisations. `make test-zoo` fails if the numbers get worse.

* *error*: the largest difference of any output, divided by the largest value of the expected output;
* *FLOPs*, *calls*: the share of the FLOPs that is offloaded, and the offloaded calls of all calls after preparation;
  views count as calls without FLOPs;
* *regions*: the number of functions that a backend compiles; 1 means that one region has the whole network, except for
  calls at its inputs and outputs.

"""
_TITLES = {
    "onnx": "## As ONNX files",
    "torch.export": "## The same networks through torch.export and TVM's PyTorch frontend",
}
_CALLED = re.compile(r"\(it calls (\w+?)\d*\)$")  # TVM numbers the functions that it makes: mirror_pad, mirror_pad1, …


def to_dict(result: Result) -> dict[str, Any]:
    """A result as JSON can hold it; seconds are left out, since they say more about the machine."""
    data = dataclasses.asdict(result) | {"error": f"{result.error:.0e}", "flops_share": round(result.flops_share, 6)}
    data["stays"] = [[op, reason, count] for (op, reason), count in result.stays.items()]
    del data["seconds"]
    return data


def from_dict(data: Mapping[str, Any]) -> Result:
    """A result out of what `to_dict` made."""
    stays = {(op, reason): count for op, reason, count in data["stays"]}
    return Result(**{**data, "error": float(data["error"]), "stays": stays})


def load(path: Path) -> list[Result]:
    """The results in a file; none when there is no file."""
    return [from_dict(d) for d in json.loads(path.read_text())] if path.is_file() else []


def save(path: Path, results: Iterable[Result]) -> None:
    """Put results into a file, in place of older ones of the same model and form."""
    known = {(r.form, r.name): r for r in (*load(path), *results)}
    order = [(form, name) for form in FORMS for name in ZOO]
    rows = ",\n".join(json.dumps(to_dict(known[key])) for key in order if key in known)
    path.write_text(f"[\n{rows}\n]\n")


def render(results: Iterable[Result]) -> str:
    """The page."""
    found = list(results)
    parts = [_HEAD]
    for form, title in _TITLES.items():
        some = [r for r in found if r.form == form]
        parts += [title, "\n\n", *_table(some), "\n"]
        parts += _refusals(some)
        parts += _loose(some)
        parts += _stays(some)
    return "".join(parts).rstrip("\n") + "\n"


def _table(results: Iterable[Result]) -> Iterator[str]:
    yield "| model | what | weights | error | FLOPs | calls | regions |\n|---|---|---|---|---|---|---|\n"
    for r in results:
        entry = ZOO[r.name]
        weights = f"`{entry.package}`" if entry.package else "random"
        if r.refusal:
            yield f"| `{r.name}` | {entry.task} | {weights} | not imported, see below | | | |\n"
            continue
        error = f"{r.error:.0e}" + ("" if r.error <= entry.tolerance else " **too large**")
        calls = f"{r.offloaded_calls} of {r.calls}"
        yield f"| `{r.name}` | {entry.task} | {weights} | {error} | {_percent(r)} | {calls} | {r.regions} |\n"


def _percent(result: Result) -> str:
    """Rounded down to a hundredth; less than a millionth is nothing."""
    return f"{int(result.flops_share * 10000) / 100:g} %"


def _refusals(results: Iterable[Result]) -> Iterator[str]:
    refused = [r for r in results if r.refusal]
    if refused:
        yield "Not imported:\n\n"
        yield from (f"* `{r.name}`: {r.refusal}\n" for r in refused)
        yield "\n"


def _stays(results: Iterable[Result]) -> Iterator[str]:
    """The calls that stay with TVM by operator and reason, with their models; refused models have none."""
    where: dict[tuple[str, str], dict[str, int]] = {}
    for r in results:
        for (op, reason), count in r.stays.items():
            called = _CALLED.search(reason)
            key = (called[1], _CALLED.sub(f"(it calls {called[1]})", reason)) if called else (op, reason)
            models = where.setdefault(key, {})
            models[r.name] = models.get(r.name, 0) + count
    if not where:
        return
    yield "What stays with TVM, and why:\n\n| operator | reason | calls |\n|---|---|---|\n"
    for (op, reason), models in sorted(where.items()):
        calls = ", ".join(f"{name} {count}" for name, count in models.items())
        yield f"| `{op}` | {_cell(reason)} | {calls} |\n"
    yield "\n"


def _loose(results: Iterable[Result]) -> Iterator[str]:
    some = [r for r in results if ZOO[r.name].why and not r.refusal]
    if some:
        yield "A larger error is accepted from:\n\n"
        yield from (f"* `{r.name}`: {ZOO[r.name].why}.\n" for r in some)
        yield "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
