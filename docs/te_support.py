"""The ops that the translator to TE takes, and how: the table in docs/te_translator.md (``make docs``)."""

from __future__ import annotations

from pathlib import Path

from tvm.ir import Op

from tvm_byoc_dnnl.te.computes import REFUSED
from tvm_byoc_dnnl.te.legalize import MENDED
from tvm_byoc_dnnl.te.translate import STRUCTURAL

PAGE = Path(__file__).parent / "te_translator.md"
_BEGIN, _END = "<!-- begin: te_support -->\n", "<!-- end: te_support -->\n"
LEGALIZED = "TVM's legaliser"
OWN = "a compute of this package"
TRANSLATOR = "the translator itself"


def te_support() -> dict[str, tuple[bool, str]]:
    """Find how each Relax op of the installed TVM is translated.

    Returns
    -------
    dict
        ``op -> (taken, how)``: by what when it is taken, the reason when it is refused. A registered compute
        makes any op taken.
    """
    return {name: _how(name) for name in sorted(Op.list_op_names()) if name.startswith("relax.")}


def _how(name: str) -> tuple[bool, str]:
    if name in REFUSED:
        return False, REFUSED[name]
    if name in STRUCTURAL:
        return True, TRANSLATOR
    if name in MENDED:
        return True, OWN
    if Op.get(name).get_attr("FLegalize") is not None:
        return True, LEGALIZED
    return False, "TVM has no legalisation for it"


def render() -> str:
    """The table, grouped by how: the taken ones first."""
    groups: dict[tuple[bool, str], list[str]] = {}
    for name, how in te_support().items():
        groups.setdefault(how, []).append(f"`{name.removeprefix('relax.')}`")
    taken = [(how, ops) for (ok, how), ops in groups.items() if ok]
    refused = [(how, ops) for (ok, how), ops in groups.items() if not ok]
    lines = []
    for title, rows in (("taken by", taken), ("refused because", refused)):
        lines.append(f"{sum(len(ops) for _, ops in rows)} ops of `relax.*`:\n\n| {title} | ops |\n|---|---|\n")
        lines += [f"| {how} | {' '.join(ops)} |\n" for how, ops in sorted(rows, key=lambda row: -len(row[1]))]
        lines.append("\n")
    return "".join(lines)


def replace_table(text: str) -> str:
    """``text`` with the table between its two marker lines renewed."""
    head, rest = text.split(_BEGIN)
    _, tail = rest.split(_END)
    return f"{head}{_BEGIN}{render()}{_END}{tail}"


if __name__ == "__main__":
    PAGE.write_text(replace_table(PAGE.read_text()))
