"""A package with a new backend in it, for a vendor to begin with."""

from __future__ import annotations

import keyword
import re
from pathlib import Path

from ..core.errors import InputError
from ..core.files import written_folder
from .namespaces import HOST, find_namespace

#: the example of the docs: a backend that conforms, with its tests
_TEMPLATE = Path(__file__).resolve().parents[1] / "template"
_NAME = "toy_npu"


def new_backend(name: str, folder: Path) -> list[Path]:
    """Write a package of a name with a backend that conforms; its files, in order. `InputError` if it cannot be so."""
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name) or keyword.iskeyword(name):
        raise InputError(f"the name is {name!r}; expected lower case letters, digits and _, such as my_npu")
    if name == HOST or find_namespace(name):
        raise InputError(f"there is a backend {name!r} already; choose another name")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} exists; give a folder that is new or empty")
    with written_folder(folder) as aside:
        made = [path.relative_to(aside) for path in _write(aside, name)]
    return [folder / path for path in made]


def _write(folder: Path, name: str) -> list[Path]:
    made = []
    for source in sorted(_TEMPLATE.rglob("*")):
        if source.is_dir() or "__pycache__" in source.parts or source.suffix == ".pyc":
            continue
        target = folder / _renamed(str(source.relative_to(_TEMPLATE)), name)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(_renamed(source.read_text(encoding="utf-8"), name), encoding="utf-8")
        made.append(target)
    return made


def _renamed(text: str, name: str) -> str:
    return text.replace(_NAME, name).replace(_NAME.replace("_", "-"), name.replace("_", "-"))
