"""The code of the pages: it uses public names only, and the page about codegens runs as it stands."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from pathlib import Path

import onnx.parser
import pytest

import tvm_byoc_dnnl as byoc
from tvm_byoc_dnnl.testing.conformance import run_conformance
from tvm_byoc_dnnl.testing.models import find_model

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(?:python)?\n(.*?)^```", re.M | re.S)
MENTIONED = re.compile(r"`byoc\.([A-Za-z_]\w*)|`tvm_byoc_dnnl\.((?:\w+\.)*\w+)`?")
#: modules of the package that pages may name, besides the package itself
MODULES = {
    "tvm_byoc_dnnl.testing",
    "tvm_byoc_dnnl.testing.conformance",
    "tvm_byoc_dnnl.onnx_backend",
    "tvm_byoc_dnnl.ort",
    "tvm_byoc_dnnl.vendor",
}
#: neither: the list itself, the group of entry points, and a global function of TVM
NO_NAMES = {"__all__", "vendors", "UseCaches"}
ENGINE_PAGES = {"architecture.md", "add_an_op.md", "portable_graph.md"}  # about the inside of the package


def blocks(page: Path) -> list[str]:
    """The Python of a page; other blocks without a language are left out, they do not parse."""
    return [code for code in BLOCK.findall(page.read_text()) if parsed(code) is not None]


def parsed(code: str) -> ast.Module | None:
    try:
        return ast.parse(code)
    except SyntaxError:
        return None


def names_used(code: str) -> Iterator[str]:
    """What a block takes from the package: names, or modules with a dot in them."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "byoc":
            yield node.attr
        elif isinstance(node, ast.ImportFrom) and node.module == "tvm_byoc_dnnl":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tvm_byoc_dnnl."):
            yield str(node.module)
        elif isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.startswith("tvm_byoc_dnnl."))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_uses_public_names_only(page: Path) -> None:
    used = {name for code in blocks(page) for name in names_used(code)}
    strangers = {name for name in used if name not in byoc.__all__ and name not in MODULES}
    if page.name not in ENGINE_PAGES:
        for short, long in MENTIONED.findall(page.read_text()):
            if (
                not {short or long.split(".")[0]} & {*byoc.__all__, *NO_NAMES}
                and f"tvm_byoc_dnnl.{long}" not in MODULES
            ):
                strangers.add(short or long)
    assert not strangers, f"{page.name} uses {sorted(strangers)}; export them from tvm_byoc_dnnl"


def user_pages() -> list[Path]:
    shelf = re.search(r":caption: Use\n.*?\n\n(.*?)```", (ROOT / "docs" / "index.md").read_text(), re.S)
    assert shelf
    return [ROOT / "README.md", ROOT / "docs" / "index.md", *(ROOT / "docs" / f"{n}.md" for n in shelf[1].split())]


@pytest.mark.parametrize("page", user_pages(), ids=lambda page: page.name)
def test_code_for_users_says_where_its_names_come_from(page: Path) -> None:
    """In the block or one above it, so that a page can be typed from top to bottom; a sketch has ``...`` in it."""
    known = {*dir(builtins)}
    for code in blocks(page):
        nodes = list(ast.walk(ast.parse(code)))
        imported = {(n.asname or n.name).split(".")[0] for n in nodes if isinstance(n, ast.alias)}
        stored = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        named = {getattr(n, "name", None) or getattr(n, "arg", None) for n in nodes}
        known |= imported | stored | named
        if any(isinstance(n, ast.Constant) and n.value is ... for n in nodes):
            continue
        unknown = {n.id for n in nodes if isinstance(n, ast.Name)} - known
        assert not unknown, f"{page.name} does not say what {sorted(unknown)} are:\n{code}"


@pytest.mark.native
def test_the_first_page_prints_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = ROOT / "docs" / "index.md"
    monkeypatch.chdir(tmp_path)
    onnx.save(find_model("squeezenet").read(), "squeezenet.onnx")
    exec(blocks(page)[0], {})
    expected = re.findall(r"^```text\n(.*?)^```", page.read_text(), re.M | re.S)[0]
    reorders = re.compile(r" with \d+ reorders?")  # how many depends on the CPU
    assert reorders.sub("", capsys.readouterr().out) == reorders.sub("", expected)


def api_sections() -> list[str]:
    return (ROOT / "docs" / "api.md").read_text().split("\n## ")[1:]


def test_the_api_page_has_every_public_name_once() -> None:
    listed = re.findall(r"^\.\. auto\w+:: tvm_byoc_dnnl\.(\w+)$", "".join(api_sections()), re.M)
    assert sorted(listed) == sorted({*byoc.__all__} - {"__version__"})


@pytest.mark.native
@pytest.mark.parametrize(
    "section",
    [section for section in api_sections() if not section.startswith("Text")],  # needs the folder of a language model
    ids=lambda section: section.splitlines()[0],
)
def test_the_example_of_each_part_of_the_api_runs(
    section: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```", section, re.M | re.S)
    monkeypatch.chdir(tmp_path)
    onnx.save(small_convnet(), "model.onnx")
    if "ArtifactError" in code:
        Path("model.so").write_bytes(b"cut off")
    try:
        exec(compile(code, "api.md", "exec"), {"__name__": "page"})
    finally:
        if "my_npu" in byoc.compilers():
            byoc.unregister_compiler("my_npu")


def small_convnet() -> onnx.ModelProto:
    return onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[1, 3, 224, 224] x) => (float[1, 3, 112, 112] y)
        <float[3, 3, 2, 2] w = {1,2,3,4, 1,2,3,4, 1,2,3,4, 1,2,3,4, 1,2,3,4, 1,2,3,4, 1,2,3,4, 1,2,3,4, 1,2,3,4}>
        { c = Conv <strides = [2, 2]> (x, w)  y = Relu(c) }
    """)


def test_every_public_name_exists() -> None:
    assert [name for name in byoc.__all__ if not hasattr(byoc, name)] == []


def test_the_page_about_codegens_runs() -> None:
    code = "\n".join(blocks(ROOT / "docs" / "own_codegen.md"))
    try:
        exec(compile(code, "own_codegen.md", "exec"), {"__name__": "page"})
        report = run_conformance("page_npu", only=["page_npu.*"], share=0.01)
    finally:
        byoc.unregister_compiler("page_npu")
    assert not report.failures


@pytest.mark.native
def test_the_page_about_int8_runs_and_its_backend_conforms() -> None:
    code = "\n".join(blocks(ROOT / "docs" / "quantised_backends.md"))
    try:
        exec(compile(code, "quantised_backends.md", "exec"), {"__name__": "page"})
        report = run_conformance("page_int8", share=0.1)
    finally:
        byoc.unregister_compiler("page_int8")
    assert report.ok, report.to_text()


def test_the_page_for_those_who_come_from_relay_runs() -> None:
    code = "\n".join(blocks(ROOT / "docs" / "relay.md"))
    try:
        exec(compile(code, "relay.md", "exec"), {"__name__": "page"})
    finally:
        for name in ("page_hooks", "page_vanilla"):
            byoc.unregister_compiler(name)


@pytest.mark.native
def test_the_page_about_devices_runs() -> None:
    code = "\n".join(blocks(ROOT / "docs" / "devices.md"))
    try:
        exec(compile(code, "devices.md", "exec"), {"__name__": "page"})
    finally:
        for name in ("page_layout", "page_device", "page_memory"):
            byoc.unregister_compiler(name)
