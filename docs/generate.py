"""Write docs/op_support.md from what the vendors registered (``make docs``), or check that it is current."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from tvm_byoc_dnnl.registry import Namespace, compilers, namespace

PAGE = Path(__file__).parent / "op_support.md"
ROOT = PAGE.parents[1]

_HEAD = """# Which operators are taken

Written by `make docs` from the registry; `byoc.supported_ops(namespace)` gives the same list. An operator here *may*
be taken: each call is decided with its own dtypes, shapes and attributes, and `byoc.explain` shows the reason of
every one that stays with TVM.
"""


def _first_sentence(function: Callable[..., object]) -> str:
    text = inspect.getdoc(function) or ""
    return " ".join(text.split("\n\n")[0].split()).replace("|", "\\|").replace("``", "`")


def _file(function: Callable[..., object]) -> str:
    path = Path(inspect.getsourcefile(inspect.unwrap(function)) or "").resolve()
    name = path.relative_to(ROOT).as_posix()
    return f"[{name}](../{name})"


def _table(title: str, rows: dict[str, Callable[..., object] | None]) -> Iterator[str]:
    yield f"| {title} | notes | where |\n|---|---|---|\n"
    for name, function in rows.items():
        notes = (_first_sentence(function), _file(function)) if function else ("lowered op by op", "")
        yield f"| `{name}` | {' | '.join(notes)} |\n"


def _section(ns: Namespace) -> Iterator[str]:
    yield f"\n## {ns.name}\n\n{len(ns.ops())} operators"
    yield f", {len(ns.patterns)} patterns of several\n\n" if ns.patterns else "\n\n"
    # The lowering says what is made of a call; a namespace without one has its predicate.
    yield from _table("operator", {op: ns.lowerings.get(op) or ns.predicates[op] for op in ns.ops()})
    if ns.patterns:
        yield "\n"
        yield from _table("pattern", {name: p.check or p.lower for name, p in sorted(ns.patterns.items())})


def render() -> str:
    """The page: the namespaces of this repository, whatever else is installed."""
    ours = [name for name in compilers() if (ROOT / "patterns" / name).is_dir()]
    return _HEAD + "".join(line for name in ours for line in _section(namespace(name)))


if __name__ == "__main__":
    if "--check" not in sys.argv:
        PAGE.write_text(render())
    elif not PAGE.is_file() or PAGE.read_text() != render():
        sys.exit(f"{PAGE.relative_to(ROOT)} is not what the registry says; run `make docs`")
