"""Write docs/op_support.md from what the vendors registered (``make docs``), or check that it is current."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from tvm_byoc_dnnl.testing.conformance.report import Support, support_of
from tvm_byoc_dnnl.vendors import Namespace
from tvm_byoc_dnnl.vendors.namespaces import compilers, namespace

PAGE = Path(__file__).parent / "op_support.md"
ROOT = PAGE.parents[1]

_HEAD = """# Which operators are taken

`make docs` writes this page from the registry; `tvm-byoc ops` prints the same table. An operator in the table *may* be
taken: each call is decided with its own dtypes, shapes and attributes, and then the library on the machine is asked.
`byoc.explain` shows the reason of every call that stays with TVM.

The dtypes are those in which a simple call of the operator is taken, if the library supports them on the machine.
"""


def _file(function: Callable[..., object]) -> str:
    path = Path(inspect.getsourcefile(inspect.unwrap(function)) or "").resolve()
    name = path.relative_to(ROOT).as_posix()
    return f"[{name}](../{name})"


def _table(title: str, rows: list[Support]) -> Iterator[str]:
    yield f"| {title} | taken by | dtypes | notes | where |\n|---|---|---|---|---|\n"
    for row in rows:
        where = _file(row.function) if row.function else ""
        notes = row.notes.replace("|", "\\|")
        yield f"| `{row.name}` | {row.how} | {' '.join(row.dtypes)} | {notes} | {where} |\n"


def _section(ns: Namespace) -> Iterator[str]:
    rows = support_of(ns)
    operators = [r for r in rows if r.how != "pattern"]
    patterns = [r for r in rows if r.how == "pattern"]
    yield f"\n## {ns.name}\n\n{len(operators)} operators"
    yield f", {len(patterns)} patterns of several\n\n" if patterns else "\n\n"
    yield from _table("operator", operators)
    if patterns:
        yield "\n"
        yield from _table("pattern", patterns)
    if ns.unsupported:
        yield "\n| not taken | because |\n|---|---|\n"
        for op, why in sorted(ns.unsupported.items()):
            yield f"| `{op}` | {why} |\n"


def render() -> str:
    """The page: the namespaces of this repository, whatever else is installed."""
    ours = [name for name in compilers() if (ROOT / "patterns" / name).is_dir()]
    return _HEAD + "".join(line for name in ours for line in _section(namespace(name)))


if __name__ == "__main__":
    if "--check" not in sys.argv:
        PAGE.write_text(render())
    elif not PAGE.is_file() or PAGE.read_text() != render():
        sys.exit(f"{PAGE.relative_to(ROOT)} is not what the registry says; run `make docs`")
