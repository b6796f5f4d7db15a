"""The models of a server: loaded from files, described, and called."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .. import __version__
from ..api import compile
from ..core.entries import content_key
from ..core.errors import ByocError, InputError, MissingFileError, did_you_mean
from ..core.files import opened
from ..core.tensor_info import TensorInfo, check_symbols, random_arrays
from ..pipeline.executable import is_library
from ..runtime import load
from ..runtime.comparison import differences
from ..runtime.runner import Runner
from . import NOT_FOUND, TIMED_OUT, Metrics, Refusal, status_of
from .batching import Batcher, Queue
from .tensors import DATATYPES

_logger = logging.getLogger("tvm_byoc_dnnl")

Shapes = Mapping[str, Sequence["int | str"]]
#: the size of an open dim beside the batch, where two ways of calling are compared
_TRIAL_SIZE = 8


@dataclass(frozen=True)
class Settings:
    """How models are loaded and called.

    Attributes
    ----------
    threads : int
        Of each call.
    calls : int
        Calls of a model at the same time, in one process.
    most_rows, delay : int, float
        Rows of a joined call, and the seconds that a request waits for others.
    places : int
        Requests of a model that may wait, in one process.
    timeout : float
        Seconds until a request is given up.
    shapes : mapping
        Input name to shape, of the size that is prepared before the first request.
    cache_dir : Path, optional
        Folder of compiled models, for those that are not compiled.
    """

    threads: int = 1
    calls: int = 1
    most_rows: int = 1
    delay: float = 0.0
    places: int = 64
    timeout: float = 30.0
    shapes: Shapes = field(default_factory=dict)
    cache_dir: Path | None = None


@dataclass(frozen=True)
class Source:
    """The place of a model, and the name under which it is served."""

    name: str
    path: Path

    @classmethod
    def parse(cls, text: str) -> Source:
        """Out of ``PATH`` or ``NAME=PATH``.

        Raises `InputError` if the name is none that an address can have; a `MissingFileError` if there is no such file.
        """
        name, separator, path = text.partition("=")
        source = cls(name, Path(path)) if separator else cls(Path(text).stem, Path(text))
        if not re.fullmatch(r"[\w.-]+", source.name):
            raise InputError(f"{text!r} has the name {source.name!r}; expected letters, digits, '.', '_' and '-'")
        if not source.path.exists():
            raise MissingFileError(f"no file {source.path}; expected PATH, or NAME=PATH, of a model")
        return source

    def files(self) -> list[Path]:
        """The files that the model is made of."""
        if not self.path.is_dir():
            return [self.path]
        return sorted(path for path in self.path.rglob("*") if path.is_file())

    def state(self) -> tuple[Any, ...]:
        """What changes when somebody replaces or removes a file; cheap."""
        try:
            return tuple(
                (str(path), about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns)
                for path in self.files()
                for about in [path.stat()]
            )
        except OSError as error:
            return (str(error),)

    def content(self) -> str:
        """The version: a short digest of the files' bytes."""
        return content_key(part for path in self.files() for part in _parts(path))[:12]


class Model:
    """A compiled model that answers requests.

    ``source``: a library that ``export_library`` wrote, or an ONNX file, which is compiled. ``settings``: how it is
    called. Raises `InputError`, `ArtifactError`, `UnsupportedError` as of `load` and `compile`; or if the model does
    not describe its inputs.
    """

    platform = "a model of tensors"

    def __init__(self, source: Source, settings: Settings) -> None:
        self.name, self.version, self._settings = source.name, source.content(), settings
        if is_library(source.path):
            self.runner = load(source.path, threads=settings.threads)
        else:
            executable = compile(str(source.path), cache_dir=settings.cache_dir)
            self.runner = Runner(executable, threads=settings.threads)
        self.prepare()

    def prepare(self) -> None:
        """Pack the weights before there are several processes, so that they share them; find out about batches."""
        if not self.runner.inputs:
            raise InputError(f"{self.name} does not describe its inputs; write it again with export_library")
        self.inputs, self.outputs = self.runner.inputs, self.runner.outputs
        self.input_names = self.runner.input_names
        batch, most = batch_name(self.inputs, self.outputs), self._settings.most_rows
        shapes = {name: shape for name, shape in self._settings.shapes.items() if name in self.input_names}
        opens = {dim for info in self.inputs for dim in info.shape or () if isinstance(dim, str)}
        sizes: list[Shapes] = [shapes] if shapes or not opens else []
        if batch is not None and opens == {batch} and not shapes:
            sizes = [{i.name: sized(i, {batch: rows}) for i in self.inputs} for rows in {1, most}]
        try:
            self.runner.warm_up(sizes)
        except InputError as error:
            if shapes:
                raise
            _logger.warning("%s: its first request will be slow: %s", self.name, error)
        self.most_rows = most if most > 1 and batch is not None and self._rows_are_independent(batch) else 1
        if self.most_rows < most:
            _logger.warning("%s: requests are not joined into batches", self.name)

    def _rows_are_independent(self, batch: str) -> bool:
        """Whether two rows in one call give what they give alone."""
        shapes = {i.name: self._settings.shapes.get(i.name, i.shape or ()) for i in self.inputs}
        sizes = {i.name: sized(i, {batch: 2}, shapes[i.name]) for i in self.inputs}
        try:
            arrays = random_arrays(self.inputs, 0, sizes)
            together = self._answers([dict(zip(self.input_names, arrays))], [2])[0]
            parts = [{n: a[row : row + 1] for n, a in zip(self.input_names, arrays)} for row in (0, 1)]
            alone = self._answers(parts[:1], [1]) + self._answers(parts[1:], [1])
        except ByocError as error:
            _logger.warning("%s: could not be tried with two rows: %s", self.name, error)
            return False
        joined = {name: np.concatenate([part[name] for part in alone]) for name in together}
        wrong = differences(list(together.values()), list(joined.values()), 1e-3)
        if wrong:
            _logger.warning("%s: rows of a batch are not independent: %s", self.name, wrong)
        return not wrong

    def start(self, metrics: Metrics) -> None:
        """Answer requests, in threads of this process."""
        self._metrics = metrics
        settings = self._settings
        self._batcher = Batcher(
            lambda inputs: self._answers(inputs, [_rows(each) for each in inputs]),
            Queue(self.most_rows, settings.delay, settings.places),
            settings.calls,
        )

    def close(self) -> None:
        """Answer what waits, and end."""
        self._batcher.close()

    def metadata(self) -> dict[str, Any]:
        """What the protocol says of a model."""
        tensors = {"inputs": self.inputs, "outputs": self.outputs}
        listed = {
            side: [
                {
                    "name": info.name,
                    "datatype": DATATYPES.get(info.dtype, info.dtype.upper()),
                    "shape": [dim if isinstance(dim, int) else -1 for dim in info.shape or ()],
                }
                for info in infos
            ]
            for side, infos in tensors.items()
        }
        return {"name": self.name, "versions": [self.version], "platform": "tvm_byoc_dnnl", **listed}

    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._batcher)

    async def infer(self, inputs: Mapping[str, np.ndarray], outputs: Sequence[str] | None) -> dict[str, np.ndarray]:
        """The wanted outputs, or all of them.

        Raises `Refusal` if no place is left in the queue, or the time is over; `InputError` if a name, a dtype, a shape
        or a value is wrong.
        """
        ordered, names = self._checked(inputs), [o.name for o in self.outputs]
        for name in outputs or ():
            if name not in names:
                raise InputError(
                    f"unknown output {name!r}; the model's outputs are {', '.join(names)}{did_you_mean(name, names)}"
                )
        key = tuple((a.dtype.name, a.shape[1:]) for a in ordered.values()) if self.most_rows > 1 else None
        future = self._batcher.submit(ordered, _rows(ordered), key)
        try:
            results = await asyncio.wait_for(asyncio.wrap_future(future), self._settings.timeout)
        except asyncio.TimeoutError:
            raise Refusal(TIMED_OUT, f"no result within {self._settings.timeout:g} s") from None
        return results if outputs is None else {name: results[name] for name in outputs}

    def _checked(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The inputs in the model's order; what is wrong is said before it is part of a batch."""
        names = self.input_names
        for name in inputs:
            if name not in names:
                raise InputError(
                    f"unknown input {name!r}; the model's inputs are {', '.join(names)}{did_you_mean(name, names)}"
                )
        missing = [name for name in names if name not in inputs]
        if missing:
            raise InputError(f"the request has no input {missing[0]!r}; expected {', '.join(map(str, self.inputs))}")
        for info in self.inputs:
            array = inputs[info.name]
            wanted = DATATYPES.get(info.dtype)
            if wanted is not None and info.dtype != array.dtype.name:
                got = DATATYPES[array.dtype.name]
                raise InputError(f"input {info.name!r} has datatype {got}; expected {wanted}")
            info.check(array.dtype.name, array.shape)
        check_symbols(self.inputs, [inputs[name].shape for name in names])
        return {name: inputs[name] for name in names}

    def _answers(self, requests: Sequence[Mapping[str, np.ndarray]], rows: Sequence[int]) -> list[dict[str, Any]]:
        """The outputs of each request, computed in one call."""
        started = time.perf_counter()
        if len(requests) == 1:
            results = [self.runner.named(dict(requests[0]))]
        else:
            together = self.runner.named({n: np.concatenate([each[n] for each in requests]) for n in requests[0]})
            ends = np.cumsum(rows)[:-1]
            parts = {name: np.split(array, ends) for name, array in together.items()}
            results = [{name: part[i] for name, part in parts.items()} for i in range(len(requests))]
        if (metrics := getattr(self, "_metrics", None)) is not None:
            metrics.call(self.name, sum(rows), time.perf_counter() - started)
        return results


class Models:
    """The models of one process, by name."""

    def __init__(self, models: Sequence[Any], metrics: Metrics) -> None:
        self._models = {model.name: model for model in models}
        self.metrics, self.is_ready = metrics, False

    def __iter__(self) -> Iterator[Any]:
        return iter(self._models.values())

    def start(self) -> None:
        """Answer requests from now on."""
        for model in self:
            model.start(self.metrics)
        self.is_ready = True

    def close(self) -> None:
        """Answer what waits, and nothing else."""
        self.is_ready = False
        for model in self:
            model.close()

    def find(self, name: str, version: str | None = None, kind: Any = None) -> Any:
        """The model of a name, if it has the version.

        Raises `Refusal` if there is none, or it is not of the ``kind`` that answers such requests.
        """
        model = self._models.get(name)
        if model is None:
            raise Refusal(
                NOT_FOUND,
                f"no model {name!r}; expected {', '.join(self._models)}{did_you_mean(name, self._models)}",
            )
        if version and version != model.version:
            raise Refusal(NOT_FOUND, f"model {name!r} has no version {version!r}; expected {model.version}")
        if kind is not None and not isinstance(model, kind):
            raise InputError(f"model {name!r} is {model.platform}, not {kind.platform}: it has other addresses")
        return model

    async def infer(
        self, name: str, version: str | None, inputs: Mapping[str, np.ndarray], outputs: Sequence[str] | None
    ) -> tuple[Model, dict[str, np.ndarray]]:
        """The model of a name, and its outputs; counted. Errors are those of `find` and of `Model.infer`."""
        model = self.find(name, version, Model)
        with self.metrics.request(model.name, status_of):
            return model, await model.infer(inputs, outputs)


def server_metadata() -> dict[str, Any]:
    """What the protocol says of a server."""
    return {"name": "tvm-byoc", "version": __version__, "extensions": ["binary_tensor_data"]}


def batch_name(inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo]) -> str | None:
    """The open dim that is the first of every input and output, and nowhere else; ``None`` where there is none."""
    shapes = [info.shape for info in (*inputs, *outputs)]
    firsts = {shape[0] if shape else None for shape in shapes}
    name = firsts.pop() if len(firsts) == 1 else None
    if not isinstance(name, str) or not name.isidentifier():
        return None
    others = [dim for shape in shapes for dim in (shape or ())[1:] if isinstance(dim, str)]
    return None if any(re.search(rf"\b{name}\b", dim) for dim in others) else name


def sized(info: TensorInfo, sizes: Mapping[str, int], shape: Sequence[int | str] | None = None) -> tuple[int, ...]:
    """A shape of an input with numbers for open dims; the first dim is the input's, the others those of ``shape``."""
    dims = [*(info.shape or ())[:1], *(info.shape if shape is None else shape)[1:]]  # type: ignore[index]
    return tuple(dim if isinstance(dim, int) else sizes.get(dim, _TRIAL_SIZE) for dim in dims)


def _parts(path: Path) -> Iterator[bytes]:
    with opened(path) as file:
        yield from iter(lambda: file.read(1 << 20), b"")


def _rows(inputs: Mapping[str, np.ndarray]) -> int:
    first = next(iter(inputs.values()))
    return int(first.shape[0]) if first.ndim else 1
