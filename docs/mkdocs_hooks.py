"""Hooks of MkDocs: the pages that exist only on the site, and links to files that are not on it."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
_LINK = re.compile(r"\[([^\]]*)\]\(((?:\.\./)*[\w./-]+)(#[\w-]+)?\)")


def on_files(files: Any, config: Any) -> Any:
    """The README as the first page, and a page of all public names."""
    readme = _LINK.sub(_from_root, (ROOT / "README.md").read_text(encoding="utf-8"))
    files.append(File.generated(config, "index.md", content=readme))
    files.append(File.generated(config, "api.md", content=_api()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """A link to a file outside of docs/ becomes its name: the site has no copy of it."""
    folder = (ROOT / "docs" / page.file.src_path).parent

    def link(match: re.Match[str]) -> str:
        target = (folder / match[2]).resolve()
        if target.is_relative_to(ROOT / "docs") or not target.exists():
            return match[0]
        return f"{match[1]} (`{target.relative_to(ROOT)}`)"

    return _LINK.sub(link, markdown)


def _from_root(match: re.Match[str]) -> str:
    """A link of the README, as one of a page in docs/."""
    if not (ROOT / match[2]).exists():
        return match[0]
    target = match[2].removeprefix("docs/") if match[2].startswith("docs/") else f"../{match[2]}"
    return f"[{match[1]}]({target}{match[3] or ''})"


def _api() -> str:
    """The public names by the module that has them, as the package imports them."""
    tree = ast.parse((ROOT / "tvm_byoc_dnnl" / "_public.py").read_text(encoding="utf-8"))
    names = [
        (alias.name, f"tvm_byoc_dnnl.{node.module}.{alias.name}")
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.level
        for alias in node.names
        if not alias.name.startswith("_")
    ]
    lines = ["# API", "", "All names are importable from `tvm_byoc_dnnl`.", ""]
    for kind, wanted in ("Functions", str.islower), ("Classes", lambda name: not name.islower()):
        lines += [f"## {kind}", ""]
        lines += [f"::: {path}\n" for name, path in sorted(names) if wanted(name)]
    return "\n".join(lines)
