"""Wheel, sdist and editable install, each used in a clean environment."""

from __future__ import annotations

import re
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.packaging.conftest import ROOT, UNOPTIMISED, Environment, clean_environment, run

pytestmark = pytest.mark.packaging

LIBRARY = "tvm_byoc_dnnl/lib/libtvm_byoc_dnnl.so"
ENGINE = "tvm_byoc_dnnl/lib/libtvm_byoc_engine_dnnl.so"
# oneDNN's, for source output: the wheel of its library has none
_PARTS = ("", "_common", "_common_types", "_config", "_types", "_version")
_OURS = (
    p.name
    for folder in ("executor", "kernels", "dnnl/emitted", "native")
    for p in (ROOT / "codegen_src" / folder).glob("*byoc_*.h")
)
HEADERS = {
    f"tvm_byoc_dnnl/lib/include/{name}" for name in ("dnnl.h", *(f"oneapi/dnnl/dnnl{p}.h" for p in _PARTS), *_OURS)
}

HAS_LOADER = """
import tvm, tvm_ffi
print(tvm_ffi.get_global_func("ffi.Module.load_from_bytes.dnnl_byoc", allow_missing=True) is not None)
"""
WHERE = "import tvm_byoc_dnnl; print(tvm_byoc_dnnl.__file__)"

EXPORT = """
import sys, numpy as np, tvm, tvm_byoc_dnnl as byoc
from tvm import relax
bb = relax.BlockBuilder()
x = relax.Var("x", relax.TensorType((2, 64), "float32"))
weight = np.linspace(-1, 1, 64 * 32, dtype="float32").reshape(64, 32)
with bb.function("main", [x]):
    with bb.dataflow():
        out = bb.emit_output(relax.op.nn.relu(relax.op.matmul(x, relax.const(weight))))
    bb.emit_func_output(out)
regions = [f for f in byoc.partition(bb.get()).functions.values() if f.attrs and "Codegen" in f.attrs]
assert len(regions) == 1
byoc.compile(bb.get(), output=sys.argv[3]).export_library(sys.argv[1])
value = np.linspace(-1, 1, 2 * 64, dtype="float32").reshape(2, 64)
np.savez(sys.argv[2], x=value, y=np.maximum(value @ weight, 0))
"""
# Nothing but TVM: what a deployed program does.
RUN = """
import sys, numpy as np, tvm
from tvm import relax
data = np.load(sys.argv[2])
vm = relax.VirtualMachine(tvm.runtime.load_module(sys.argv[1]), tvm.cpu())
print(np.abs(vm["main"](tvm.runtime.tensor(data["x"])).numpy() - data["y"]).max() < 1e-4)
print("onnx" in sys.modules)
"""


def source_files(tree: Path, folder: str) -> set[str]:
    return {p.relative_to(tree).as_posix() for p in (tree / folder).rglob("*") if p.is_file()}


def test_wheel_fits_every_python_and_holds_the_package_only(wheel: Path, copy_source: Callable[[], Path]) -> None:
    assert re.fullmatch(r"tvm_byoc_dnnl-[\d.]+-py3-none-linux_\w+\.whl", wheel.name)
    with zipfile.ZipFile(wheel) as archive:
        names = {n for n in archive.namelist() if ".dist-info/" not in n}
    tree = copy_source()
    patterns = {f"tvm_byoc_dnnl/{p}" for p in source_files(tree, "patterns")}
    example = "examples/vendor_package"
    template = {p.replace(example, "tvm_byoc_dnnl/template") for p in source_files(tree, example)}
    assert names == source_files(tree, "tvm_byoc_dnnl") | patterns | template | HEADERS | {LIBRARY, ENGINE}
    assert not [n for n in names if "zoo" in n], "the models to measure are for developers: they stay in bench/zoo"


def test_sdist_holds_everything_that_a_developer_needs(sdist: Path, copy_source: Callable[[], Path]) -> None:
    with tarfile.open(sdist) as archive:
        names = {n.partition("/")[2] for n in archive.getnames()}
    tree = copy_source()
    wanted = {"CMakeLists.txt", "LICENSE", "Makefile", "README.md", "pyproject.toml", "setup.py"}
    for folder in ("bench", "codegen_src", "docs", "examples", "patterns", "tests", "tvm_byoc_dnnl"):
        wanted |= source_files(tree, folder)
    assert wanted - names == set()


def test_import_tvm_alone_loads_the_library(installed: Environment) -> None:
    assert installed.run(HAS_LOADER).split() == ["True"]


def test_package_comes_from_the_wheel(installed: Environment) -> None:
    assert Path(installed.run(WHERE).strip()).is_relative_to(installed.site_packages)


def test_exported_model_runs_after_import_tvm_alone(installed: Environment, tmp_path: Path) -> None:
    files = tmp_path / "model.so", tmp_path / "data.npz"
    installed.run(EXPORT, *files, "module")
    assert installed.run(RUN, *files).split() == ["True", "False"]


def test_source_output_needs_no_headers_but_ours_and_no_package_to_run(
    wheel: Path, new_environment: Callable[..., Environment], tmp_path: Path
) -> None:
    environment = new_environment("onednn_devel")
    environment.pip("install", "--no-deps", wheel)
    files = tmp_path / "model.so", tmp_path / "data.npz"
    environment.run(EXPORT, *files, "source")
    environment.pip("uninstall", "--yes", "tvm-byoc-dnnl")
    assert environment.run(RUN, *files).split() == ["True", "False"]


@pytest.mark.large
def test_editable_install_uses_the_tree(
    copy_source: Callable[[], Path], new_environment: Callable[..., Environment]
) -> None:
    tree, environment = copy_source(), new_environment()
    environment.pip("install", "--no-deps", "--no-build-isolation", *UNOPTIMISED, "--editable", tree)
    assert Path(environment.run(WHERE).strip()) == tree / "tvm_byoc_dnnl" / "__init__.py"
    assert (tree / LIBRARY).is_file()
    assert (tree / ENGINE).is_file()
    assert environment.run(HAS_LOADER).split() == ["True"]

    vendor = tree / "patterns" / "newcomer"
    vendor.mkdir()
    (vendor / "__init__.py").write_text("NAME = 'seen'\n")
    assert environment.run("import tvm_byoc_dnnl.patterns.newcomer as n; print(n.NAME)").strip() == "seen"


def failed_autoload(environment: Environment, **env: str) -> str:
    """The message of ``import tvm`` when our library does not load: a warning, after which TVM goes on."""
    done = subprocess.run(
        [str(environment.python), "-c", "import tvm; print('goes on')"],
        cwd=environment.path,
        env=clean_environment() | env,
        text=True,
        capture_output=True,
    )
    assert done.stdout.strip() == "goes on", done.stderr
    assert done.stderr.count("Failed to autoload tvm backend 'tvm_byoc_dnnl'") == 1
    assert "Traceback" not in done.stderr
    return done.stderr


def test_missing_libdnnl_is_one_error_with_the_cure_where_a_model_needs_it(
    installed: Environment, wheel: Path, new_environment: Callable[..., Environment], tmp_path: Path
) -> None:
    files = tmp_path / "model.so", tmp_path / "data.npz"
    installed.run(EXPORT, *files, "module")
    environment = new_environment("onednn")
    environment.pip("install", "--no-deps", wheel)
    assert environment.run(HAS_LOADER).split() == ["True"]  # what other vendors' models need is there
    refused = environment.run(
        "import sys, tvm\ntry:\n    tvm.runtime.load_module(sys.argv[1])\nexcept Exception as e:\n    print(e)",
        files[0],
    )
    assert "libdnnl.so.3" in refused
    assert "pip install onednn-cpu-gomp" in refused


def test_unloadable_libgomp_is_one_warning_with_the_cure(installed: Environment, tmp_path: Path) -> None:
    (tmp_path / "libgomp.so.1").write_text("not a library")
    warning = failed_autoload(installed, LD_LIBRARY_PATH=str(tmp_path))
    assert "libgomp.so.1" in warning
    assert "install libgomp1" in warning


def test_command_line_is_installed(installed: Environment) -> None:
    shown = run(installed.path / "bin" / "tvm-byoc", "--help", cwd=installed.path)
    assert "compile" in shown
    assert "explain" in shown
