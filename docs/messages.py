"""The messages of the package's errors, read from its code: what the page on troubleshooting lists."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_FOLDERS = ("tvm_byoc_dnnl", "patterns")


def _text(node: ast.expr) -> str:
    """A message as it reads, with … for what only a run knows."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left) + _text(node.right)
    return "…"


def _raised(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
            name = node.exc.func.attr if isinstance(node.exc.func, ast.Attribute) else getattr(node.exc.func, "id", "")
            text = " ".join(_text(node.exc.args[0]).split())
            if name.endswith(("Error", "Unsupported", "Exception")) and len(text.replace("…", "")) > 12:
                yield name, text


def messages() -> dict[str, dict[str, str]]:
    """Error class → message → the file that raises it."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for folder in _FOLDERS:
        for file in sorted((ROOT / folder).rglob("*.py")):
            for name, text in _raised(ast.parse(file.read_text(encoding="utf-8"))):
                found[name].setdefault(text, file.relative_to(ROOT).as_posix())
    return dict(sorted(found.items()))


def render() -> str:
    """A section for each class, a line for each message."""
    lines = []
    for name, rows in messages().items():
        lines += [f"### {name}", ""]
        lines += [f"* {text} (`{file}`)" for text, file in sorted(rows.items(), key=lambda row: row[0].lower())]
        lines.append("")
    return "\n".join(lines)
