"""Which part may import which, in Python and in C++; the tables below are the rules of docs/architecture.md."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import tvm_byoc_dnnl as byoc

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "tvm_byoc_dnnl"

# What a backend in the tree may import, as a vendor's own package may: the names of the package, and the second tier.
VENDOR_API = {"vendor"}

# Files of the engine that may name a vendor or its library, and why. The package's own name is not one of these words.
NAMES_A_VENDOR = {
    "tvm_byoc_dnnl/api/__init__.py": "the default of the one-call forms is the backend in the package's name",
    "tvm_byoc_dnnl/testing/conformance/__init__.py": "tries a backend beside those that are always there",
}
OWN_NAME = re.compile(r"tvm[-_]byoc[-_]dnnl", re.IGNORECASE)

# C++: (files, headers that they must not see).
TVM = r"(tvm|dlpack)/"
ONEDNN = r"(oneapi/)?dnnl"
FORBIDDEN_HEADERS = [
    ("codegen_src/common/**/*", f"{TVM}|{ONEDNN}|runtime/"),
    ("codegen_src/executor/*", f"{TVM}|{ONEDNN}|runtime/|common/|kernels/"),
    ("codegen_src/kernels/*", f"{TVM}|{ONEDNN}|runtime/|common/"),
    ("codegen_src/native/*", f"{TVM}|{ONEDNN}|runtime/"),
    ("codegen_src/runtime/*", ONEDNN),
    ("codegen_src/dnnl/*", f"{TVM}|runtime/"),
]
# Words that name oneDNN, apart from the name of this package; and where they may stand, and why.
ONEDNN_WORDS = re.compile(r"(?i)(?<!tvm_byoc_)(?<!tvm-byoc-)(?:one|lib)?dnnl")
NAMES_ONEDNN = {
    ("codegen_src/common/artifact.h", "dnnl"): "the engine of saved modules that do not name theirs",
    ("codegen_src/runtime/guarded.h", "dnnl"): "dnnl_byoc, which saved modules call their kind",
    ("codegen_src/runtime/module.cc", "dnnl"): "dnnl_byoc, which saved modules call their kind",
    ("codegen_src/common/artifact.cc", "dnnl"): "dnnl_byoc, which saved modules call their kind",
}

# `tests/unit/`, `annotate.py`, `.ci/run`; not `patterns/<vendor>/`, `*.py`, `model.onnx` or and/or.
NAMED_PATH = re.compile(
    r"(?<![\w./<*-])(\.?[\w-]+(?:/[\w.-]+)*(?:/(?![\w<*.])|\.(?:py|cc|h|md|toml|in)\b)|\.ci/\w+)(?![\w<*])"
)
PATHS_START_IN = ("docs", PACKAGE, "codegen_src")
BUILT = {"dist/"}  # is there only after `make wheel`


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def python_files(*folders: str) -> list[Path]:
    found = [p for folder in folders for p in (ROOT / folder).rglob("*.py")]
    # rglob may follow the symlink tvm_byoc_dnnl/patterns, whose files are those of patterns/
    return sorted(p for p in found if "patterns" not in p.relative_to(ROOT).parts[1:])


@functools.cache
def imported(path: Path) -> list[tuple[str, list[str]]]:
    """Module of the package and names, for each import of a file: those inside of functions, and for types, too."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    where = [PACKAGE, *parts] if parts[0] == "patterns" else list(parts)
    found: list[tuple[str, list[str]]] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            base = where[: len(where) - node.level] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found.append((module, [alias.name for alias in node.names]))
        elif isinstance(node, ast.Import):
            found.extend((alias.name, []) for alias in node.names)
    return found


def engine_imports(path: Path) -> Iterator[str]:
    """Modules of the package that a file imports, as dotted names below the package."""
    for module, names in imported(path):
        if module.split(".")[0] == PACKAGE:
            below = module.removeprefix(PACKAGE).removeprefix(".")
            yield from [below] if below else names


def module_files(path: Path) -> Iterator[Path]:
    """Files of the package that a file imports."""
    for module, names in imported(path):
        if module.split(".")[0] == PACKAGE:
            place = ROOT.joinpath(*module.split("."))
            for name in names or [""]:  # a module in that folder, or something out of the module itself
                places = [place / f"{name}.py", place / name / "__init__.py", place.with_suffix(".py")]
                yield next((p for p in places if p.is_file()), place / "__init__.py")


def circles(edges: Iterable[tuple[Path, Path]]) -> list[str]:
    """Files and folders that import each other, folder by folder: there, what lies deeper counts as its child."""
    children: dict[Path, dict[str, set[str]]] = {}
    for importer, target in edges:
        parents = [p for p in importer.parents if p in target.parents]
        if not parents or importer == target:
            continue
        ours, theirs = (path.relative_to(parents[0]).parts[0] for path in (importer, target))
        children.setdefault(parents[0], {}).setdefault(ours, set()).add(theirs)
    found = []
    for folder, graph in children.items():
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            found.append(f"{folder}: {' <- '.join(error.args[1])}")
    return found


def includes(path: Path) -> list[str]:
    return re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', path.read_text(), re.M)


@pytest.mark.parametrize("path", python_files("patterns"), ids=relative)
def test_a_vendor_uses_only_the_vendor_api(path: Path) -> None:
    allowed = VENDOR_API | set(byoc.__all__)
    own = ".".join(["patterns", *path.relative_to(ROOT / "patterns").parts[:-1]])
    strangers = [n for n in engine_imports(path) if n.split(".")[0] not in allowed and not n.startswith(own)]
    assert not strangers, f"{relative(path)} imports {strangers}; a vendor may import the package and {VENDOR_API}"


@pytest.mark.parametrize("path", python_files(PACKAGE), ids=relative)
def test_the_engine_imports_no_vendor(path: Path) -> None:
    vendors = [n for n in engine_imports(path) if n.startswith("patterns.")]
    assert not vendors, f"{relative(path)} imports {vendors}; the engine asks the registry instead"


def test_no_room_has_the_name_of_something_public() -> None:
    """`import tvm_byoc_dnnl.x` would put the room in the place of the function ``x``."""
    rooms = {path.stem for path in (ROOT / PACKAGE).iterdir()}
    assert not rooms & set(byoc.__all__)
    assert not rooms & {"build", "dist"}  # which packers and linters leave out


@pytest.mark.parametrize("path", python_files(PACKAGE, "patterns"), ids=relative)
def test_a_module_binds_no_name_twice(path: Path) -> None:
    """The second value would be that of all functions, those above it included."""
    names: list[str] = []
    for node in ast.parse(path.read_text()).body:
        targets = getattr(node, "targets", [node.target] if isinstance(node, ast.AnnAssign) else [])
        parts = (part for target in targets for part in ast.walk(target))
        names += [part.id for part in parts if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)]
    assert sorted({name for name in names if names.count(name) > 1}) == []


def test_files_are_few_and_short() -> None:
    python = python_files(PACKAGE, "patterns")
    assert len(python) <= 220, "what is short and belongs to the same question stands in one file"
    cpp = [path for path in (ROOT / "codegen_src").rglob("*") if path.suffix in (".h", ".cc", ".c")]
    lines = {relative(path): path.read_text().count("\n") for path in [*python, *cpp]}
    assert {path: count for path, count in lines.items() if count > 450} == {}


def test_there_is_one_logger() -> None:
    files = [path for path in python_files(PACKAGE, "patterns") if "getLogger(" in path.read_text()]
    assert len(files) > 5
    assert [relative(p) for p in files if 'logging.getLogger("tvm_byoc_dnnl")' not in p.read_text()] == []


def test_the_engine_names_no_vendor_and_no_library() -> None:
    """Neither in code nor in words."""
    folders = [p.name for p in (ROOT / "patterns").iterdir() if (p / "__init__.py").exists()]
    vendor = re.compile("|".join([*folders, "onednn"]), re.IGNORECASE)  # libdnnl has a folder's name in it
    texts = {relative(path): OWN_NAME.sub("", path.read_text()) for path in python_files(PACKAGE)}
    found = {path: vendor.findall(text) for path, text in texts.items() if vendor.search(text)}
    strangers = {path: names for path, names in found.items() if path not in NAMES_A_VENDOR}
    assert not strangers, f"only these may name a vendor: {NAMES_A_VENDOR}"
    assert found.keys() == NAMES_A_VENDOR.keys(), "an entry of NAMES_A_VENDOR is no longer needed"


def test_no_files_and_no_folders_import_each_other() -> None:
    edges = [(path, file) for path in python_files(PACKAGE, "patterns") for file in module_files(path)]
    assert len(edges) > 500
    assert not circles(edges)


def test_a_layer_imports_from_layers_above_it() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    lines = page.partition("The layers of the Python part")[2].split("```")[1].strip().splitlines()
    level = {name: i for i, line in enumerate(lines) for name in re.match(r"\w+(, \w+)*", line)[0].split(", ")}
    edges = ((path, file) for path in python_files(PACKAGE) for file in module_files(path))
    pairs = {tuple(p.relative_to(ROOT / PACKAGE).parts[0].removesuffix(".py") for p in edge) for edge in edges}
    rooms = {a for a, _ in pairs}
    assert {a for a in rooms if (ROOT / PACKAGE / a).is_dir()} <= level.keys() <= rooms
    assert not [(a, b) for a, b in pairs if a != b and a in level and level.get(b, -1) >= level[a]]


@pytest.mark.parametrize(
    ("edges", "circle"),
    [
        (["a.py b.py", "b.py c.py"], False),
        (["a.py b.py", "b.py a.py"], True),
        (["x/a.py y/b.py", "y/c.py x/d.py"], True),  # two folders, though no file is in a circle
        (["x/a.py y/b.py", "y/c.py z.py", "z.py x/d.py"], True),
        (["x/y/a.py x/b.py", "x/b.py x/y/d.py"], True),
    ],
)
def test_circles_are_found(edges: list[str], circle: bool) -> None:
    pairs = [tuple(ROOT / name for name in edge.split()) for edge in edges]
    assert bool(circles(pairs)) == circle


@pytest.mark.parametrize(("pattern", "forbidden"), FORBIDDEN_HEADERS, ids=lambda v: v)
def test_cpp_layers(pattern: str, forbidden: str) -> None:
    files = [p for p in ROOT.glob(pattern) if p.is_file()]
    assert files, f"no file matches {pattern}"
    wrong = {relative(p): [i for i in includes(p) if re.match(forbidden, i)] for p in files}
    assert not {path: found for path, found in wrong.items() if found}


def test_kernels_start_threads_in_one_place() -> None:
    files = [path for path in (ROOT / "codegen_src").rglob("*") if path.suffix in (".h", ".cc")]
    starting = [relative(path) for path in files if re.search(r"omp\W+parallel", path.read_text(), re.I)]
    assert starting == ["codegen_src/kernels/byoc_team.h"]


def test_what_is_common_in_cpp_names_no_library() -> None:
    found = set()
    for path in (ROOT / "codegen_src").rglob("*"):
        if "dnnl" not in path.relative_to(ROOT).parts and path.suffix in (".h", ".cc", ".c"):
            found |= {(relative(path), word.lower()) for word in ONEDNN_WORDS.findall(path.read_text())}
    assert found == NAMES_ONEDNN.keys()


def test_cpp_includes_form_no_circle_of_files_or_folders() -> None:
    root = ROOT / "codegen_src"
    edges = []
    for path in root.rglob("*"):
        if path.suffix in (".h", ".cc", ".c"):
            # Headers that emitted source contains are included by their names alone.
            folders = (root, root / "executor", root / "kernels", root / "dnnl/emitted")
            found = (f / name for name in includes(path) for f in folders if (f / name).is_file())
            edges += [(path, file) for file in found]
    assert edges
    assert not circles(edges)


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md", "README.md"])
def test_paths_that_the_pages_name_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    named = set(re.findall(NAMED_PATH, text)) | set(re.findall(r"\]\(((?!https?:)[\w./-]+)", text))
    assert named, f"{page} names no path: is NAMED_PATH out of date?"
    missing = [n for n in named - BUILT if not any((ROOT / place / n).exists() for place in (".", *PATHS_START_IN))]
    assert not missing, f"{page} names what is not there: {missing}"
