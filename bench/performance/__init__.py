"""The figures of docs/performance.md: which models are measured, and what is kept of a run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from bench.without_isa import HIDDEN
from bench.zoo import ZOO, zoo_model
from tvm_byoc_dnnl.core._native import engine_info
from tvm_byoc_dnnl.core.machine import cpu_kind
from tvm_byoc_dnnl.frontends.onnx.inputs import fix_shapes
from tvm_byoc_dnnl.testing.bench import to_json
from tvm_byoc_dnnl.testing.bench.measure import Comparison, Settings
from tvm_byoc_dnnl.testing.models import LIGHT_MODELS, Model, find_model, random_inputs

__all__ = ["GROUPS", "LIMIT", "MODELS", "Entry", "Group", "entry", "keep", "load", "machine", "without_samples"]

#: environment variable that limits oneDNN, and our kernels with it, to an older CPU's instructions
LIMIT = "ONEDNN_MAX_CPU_ISA"
_ZOO = ("unet", "resnet18", "mobilenet_v2", "convnext_tiny", "bert_base", "vit_b16", "gpt2_prefill", "vit_tiny")
_TRAINED = ("ocr_detection", "ocr_recognition", "page_layout", "body_parts", "voice_activity", "speech_quality")
MODELS = (*LIGHT_MODELS, *_ZOO, *_TRAINED)


@dataclass(frozen=True)
class Group:
    """Models of which geometric means are formed, and engine → the mean that this package aims at."""

    models: tuple[str, ...]
    targets: Mapping[str, float]


def _against(onnxruntime: float, openvino: float, **others: float) -> dict[str, float]:
    return {"onnxruntime": onnxruntime, "openvino": openvino, **others}


#: see `Entry.name`
GROUPS = {
    "VGG-19, UNet, ResNet-18, ResNet-50": Group(
        ("vgg19", "unet", "resnet18", "resnet50"), _against(1.45, 1.45, mnn=1.15)
    ),
    "nine light CNNs": Group(LIGHT_MODELS, _against(1.6, 1.3)),
    "MobileNetV2, ResNet-18, UNet, ConvNeXt-tiny": Group(
        ("mobilenet_v2", "resnet18", "unet", "convnext_tiny"), _against(1.3, 1.3)
    ),
    "BERT-base, ViT-B/16, GPT-2, ViT-tiny": Group(
        ("bert_base", "vit_b16", "gpt2_prefill", "vit_tiny"), _against(1.05, 1.05)
    ),
    "trained models": Group(_TRAINED, _against(1.4, 1.15)),
}


@dataclass(frozen=True)
class Entry:
    """A model, and the function that makes its inputs."""

    model: Model
    inputs_of: Callable[[onnx.ModelProto], Mapping[str, np.ndarray]]


def entry(name: str) -> Entry:
    """A network of the onnx package, one that bench/zoo builds, or an ``.onnx`` file."""
    if name in LIGHT_MODELS or name not in ZOO:
        return Entry(find_model(name), random_inputs)
    found = zoo_model(name)
    return Entry(Model(name, lambda: _of_these_sizes(found.model, found.inputs())), lambda _model: found.inputs())


def _of_these_sizes(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray]) -> onnx.ModelProto:
    """The model with the sizes of these inputs in the place of open ones; every engine gets this file."""
    return fix_shapes(model, {name: array.shape for name, array in inputs.items()})


def machine(result: Mapping[str, Any]) -> dict[str, Any]:
    """The machine and the versions with which a run of `tvm_byoc_dnnl.testing.bench.to_json` was measured."""
    versions = {e["engine"]: e["version"] for m in result["models"] for e in m["engines"] if e["version"]}
    return {
        "cpu": f"{result['machine']['cpu']} ({cpu_kind()})",
        "isa": engine_info("dnnl")["isa"],
        "limited": bool(os.environ.get(LIMIT)),
        "hidden": os.environ.get(HIDDEN) == "avx512",
        "threads": result["settings"]["threads"],
        "rounds": result["settings"]["rounds"],
        "date": date.today().isoformat(),
        "python": result["machine"]["python"],
        "versions": versions,
    }


def without_samples(comparisons: Sequence[Comparison], settings: Settings) -> dict[str, Any]:
    """A run as it is kept: JSON, without the thousands of single times."""
    result = json.loads(json.dumps(to_json(comparisons, settings)))
    for model in result["models"]:
        for each in model["engines"]:
            each.pop("blocks_ms", None)
    return result


def load(file: Path) -> list[dict[str, Any]]:
    """The machines in a file of results; none without a file."""
    return json.loads(file.read_text()) if file.is_file() else []


def _section(machine: Mapping[str, Any]) -> tuple[str, str, bool]:
    return machine["cpu"], machine["isa"], machine.get("hidden", False)


def keep(file: Path, where: Mapping[str, Any], models: Iterable[Mapping[str, Any]], part: str | None = None) -> None:
    """Put results into a file: in place of older ones of the same CPU, part and model, beside all others.

    What was measured with instructions hidden from every engine is beside what was measured with a limit on ours alone.
    """
    machines = load(file)
    mine = next((m for m in machines if _section(m) == _section(where)), None)
    if mine is None:
        mine = {**where, "models": {}}
        machines.append(mine)
    if part is not None:
        mine = mine.setdefault(part, {"models": {}})
    measured = {model["model"]: model for model in models}
    known = {**mine["models"], **measured}
    versions = {**mine.get("versions", {}), **where["versions"]}
    mine.update(where, versions=versions, models={name: known[name] for name in [*MODELS, *known] if name in known})
    file.write_text(json.dumps(machines, indent=1) + "\n")
