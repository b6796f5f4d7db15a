"""The page of measured performance: what a run replaces, and what it leaves alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx

from bench.performance import GROUPS, _of_these_sizes, keep, load
from bench.performance.page import BEGIN, END, page_of, ratios, write
from tvm_byoc_dnnl.core.compilation import compiling, stage


def measured(name: str, ours: float, theirs: float | None) -> dict[str, Any]:
    def engine(kind: str, ms: float | None) -> dict[str, Any]:
        if ms is None:
            return {"engine": kind, "version": "1", "failure": "outputs differ by 2e+00"}
        times = {"median": ms, "low": ms, "high": ms}
        return {"engine": kind, "version": "1", "failure": None, "ms": times, "first_result_s": ms / 10}

    return {"model": name, "engines": [engine("byoc", ours), engine("onnxruntime", theirs)]}


def where(cpu: str) -> dict[str, Any]:
    return {"cpu": cpu, "isa": "avx2", "threads": 2, "rounds": 8, "date": "2026-01-01", "versions": {"byoc": "1"}}


def pages(page: Path, file: Path) -> str:
    """What is written: the page's own part, and the page of each machine behind it."""
    machines = load(file)
    write(page, machines)
    return "\n".join(each.read_text() for each in (page, *(page_of(page, machine) for machine in machines)))


def test_results_of_other_cpus_and_models_stay(tmp_path: Path) -> None:
    file = tmp_path / "performance.json"
    keep(file, where("A"), [measured("resnet50", 10, 15), measured("vgg19", 20, 30)])
    keep(file, where("B"), [measured("resnet50", 1, 2)])
    keep(file, where("A"), [measured("resnet50", 10, 30)])
    a, b = load(file)
    assert (a["cpu"], b["cpu"]) == ("A", "B")
    assert ratios(a, "onnxruntime") == {"resnet50": 3.0, "vgg19": 1.5}
    assert ratios(b, "onnxruntime", "first_result_s") == {"resnet50": 2.0}


def test_only_the_part_between_the_marks_is_written(tmp_path: Path) -> None:
    page, file = tmp_path / "performance.md", tmp_path / "performance.json"
    page.write_text(f"# Title\n\n{BEGIN}\nold\n{END}\n\n## By hand\n")
    keep(file, where("A"), [measured("vgg19", 20, 30), measured("unet", 5, None)])
    text = pages(page, file)
    own = page.read_text()
    assert own.startswith(f"# Title\n\n{BEGIN}\n\nTimes of ONNX Runtime")
    assert own.endswith(f"{END}\n\n## By hand\n")
    assert "| model | [A, avx2](performance/a-avx2.md) |" in own and "| `vgg19` | 1.50 |" in own
    assert "| `vgg19` | 20 | 30 (1.50) |" in text
    assert "| `unet` | 5 | — |" in text
    assert "* ONNX Runtime, `unet`: outputs differ by 2e+00" in text
    assert "old" not in text


def test_a_mean_is_given_only_where_every_model_of_its_group_was_measured(tmp_path: Path) -> None:
    page, file = tmp_path / "performance.md", tmp_path / "performance.json"
    page.write_text(BEGIN + END)
    names = GROUPS["VGG-19, UNet, ResNet-18, ResNet-50"].models
    keep(file, where("A"), [measured(name, 1, 2) for name in names])
    text = pages(page, file)
    assert "| VGG-19, UNet, ResNet-18, ResNet-50 | **2.00** (≥ 1.45) |" in text
    assert "| **VGG-19, UNet, ResNet-18, ResNet-50** | 2.00 |" in text
    assert "| nine light CNNs |" not in text and "| **nine light CNNs** |  |" in text


def test_engines_that_are_faster_are_named(tmp_path: Path) -> None:
    page, file = tmp_path / "performance.md", tmp_path / "performance.json"
    page.write_text(BEGIN + END)
    keep(file, where("A"), [measured("vgg19", 10, 9.5), measured("unet", 10, 8), measured("resnet50", 10, 20)])
    assert "* ONNX Runtime is faster with `unet` (0.80), `vgg19` (0.95).\n" in pages(page, file)


def test_a_limited_run_is_called_so(tmp_path: Path) -> None:
    page, file = tmp_path / "performance.md", tmp_path / "performance.json"
    page.write_text(BEGIN + END)
    ours = {**measured("vgg19", 20, None), "engines": measured("vgg19", 20, None)["engines"][:1]}
    keep(file, {**where("A"), "limited": True}, [ours])
    text = pages(page, file)
    assert "Of this package alone: [A, avx2](performance/a-avx2-limited.md)." in text
    assert "A limited run" in text and "| `vgg19` | 20 |" in text
    assert "divided by ours" not in text and ".svg" not in text


def test_a_run_with_instructions_hidden_has_a_section_of_its_own(tmp_path: Path) -> None:
    page, file = tmp_path / "performance.md", tmp_path / "performance.json"
    page.write_text(BEGIN + END)
    keep(file, {**where("A"), "hidden": True}, [measured("vgg19", 20, 30)])
    keep(file, {**where("A"), "limited": True, "hidden": False}, [measured("vgg19", 21, None)])
    assert [ratios(machine, "onnxruntime") for machine in load(file)] == [{"vgg19": 1.5}, {}]
    assert pages(page, file).count("none of the engines sees it") == 1


def test_stages_are_counted_for_whoever_collects_them() -> None:
    with stage("alone"):
        pass
    with compiling() as compilation:
        for name in ("read", "import", "read"):
            with stage(name):
                pass
    assert list(compilation.seconds) == ["read", "import"]
    assert all(s > 0 for s in compilation.seconds.values())


def test_torch_compile_has_a_part_of_its_own(tmp_path: Path) -> None:
    page, file = tmp_path / "performance.md", tmp_path / "performance.json"
    page.write_text(BEGIN + END)
    torch = measured("unet", 20, None)
    torch["engines"] = [
        {**torch["engines"][0], "engine": name, "ms": {"median": ms, "low": ms, "high": ms}}
        for name, ms in {"torch-byoc": 20.0, "byoc": 19.0, "inductor": 30.0, "eager": 50.0}.items()
    ]
    keep(file, where("A") | {"versions": {"torch-byoc": "2.13"}}, [torch], "torch")
    # a CPU on which nothing else was measured
    assert "| `unet` | 20 | 19 (0.95) | 30 (1.50) | 50 (2.50) |" in pages(page, file)
    keep(file, where("A"), [measured("unet", 18, 36)])
    text = pages(page, file)
    assert "| `unet` | 18 | 36 (2.00) |" in text
    assert "| `unet` | 20 | 19 (0.95) | 30 (1.50) | 50 (2.50) |" in text
    assert "| all, geometric mean |  | **0.95** | **1.50** | **2.50** |" in text


def test_engines_get_a_file_of_fixed_sizes() -> None:
    names = ["batch", 3, "height", "?"]
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, names)
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "g", [x], [])
    model = _of_these_sizes(onnx.helper.make_model(graph), {"x": np.zeros((1, 3, 48, 320), "float32")})
    assert [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim] == [1, 3, 48, 320]
