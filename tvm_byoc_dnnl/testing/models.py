"""Models to measure and to test with: files, and the nine networks that ship inside the ``onnx`` package, with weights
worth computing with.

The files hold the true graphs but constant weights (0.02 everywhere), so every channel would equal every
other and a wrong answer could pass. Each float weight is replaced by seeded noise of the size that its
consumer needs: activations stay near 1 through the whole network.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ..core.errors import InputError
from ..frontends.onnx.importer import load_onnx
from ..frontends.onnx.inputs import fix_shapes
from ..pipeline.executable import is_library
from ..report.measured import ort_run
from ..runtime import load

__all__ = ["LIGHT_MODELS", "Model", "find_model", "light_model", "ort_run", "random_inputs", "saved"]

LIGHT_MODELS = (
    "resnet50",
    "squeezenet",
    "densenet121",
    "inception_v1",
    "inception_v2",
    "vgg19",
    "shufflenet",
    "bvlc_alexnet",
    "zfnet512",
)

Shape = tuple[int, ...]
Fill = Callable[[np.random.Generator, Shape], np.ndarray]


def _normal(std: float) -> Fill:
    return lambda rng, shape: rng.standard_normal(shape, dtype=np.float32) * np.float32(std)


def _uniform(low: float, high: float) -> Fill:
    return lambda rng, shape: rng.uniform(low, high, shape).astype("float32")


def _he(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """Noise that keeps the variance through a weight (out, in, ...) and a ReLU."""
    return _normal(np.sqrt(2.0 / np.prod(shape[1:])))(rng, shape)


def _he_transposed(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    return np.ascontiguousarray(_he(rng, shape[::-1]).T)


# (consumer, position of the weight among its inputs) -> how to fill it
_FILLS: dict[tuple[str, int], Fill] = {
    ("Conv", 1): _he,
    ("Conv", 2): _normal(0.05),
    ("Gemm", 1): _he_transposed,
    ("Gemm", 2): _normal(0.05),
    ("BatchNormalization", 1): _uniform(0.9, 1.1),
    ("BatchNormalization", 2): _normal(0.05),
    ("BatchNormalization", 3): _normal(0.05),
    ("BatchNormalization", 4): _uniform(0.8, 1.2),
    ("Mul", 1): _uniform(0.9, 1.1),
    ("Add", 1): _normal(0.05),
}
_GEMM_TRANSPOSED_B = _he
# Scale of a batch_norm that feeds a residual sum: beside a plain shortcut the sums would pile up block by block.
_BESIDE_SHORTCUT = _uniform(0.2, 0.3)
_BESIDE_BATCH_NORM = _uniform(0.6, 0.8)
_VIEWS = frozenset({"Unsqueeze", "Reshape", "Identity"})


def _attribute(node: onnx.NodeProto, name: str, default: int) -> int:
    return next((int(a.i) for a in node.attribute if a.name == name), default)


class _Uses:
    """The readers of each value of a graph."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._of: dict[str, list[tuple[onnx.NodeProto, int]]] = {}
        self._maker = {name: node.op_type for node in graph.node for name in node.output}
        for node in graph.node:
            for position, name in enumerate(node.input):
                self._of.setdefault(name, []).append((node, position))

    def readers(self, name: str) -> Iterator[tuple[onnx.NodeProto, int]]:
        """Nodes that read ``name``, seen through nodes that only change its shape."""
        for node, position in self._of.get(name, ()):
            if node.op_type in _VIEWS and position == 0:
                yield from self.readers(node.output[0])
            else:
                yield node, position

    def fill(self, weight: str) -> Fill | None:
        """The distribution of ``weight``; ``None`` for values that no node reads as a weight."""
        for node, position in self.readers(weight):
            if (node.op_type, position) == ("Gemm", 1) and _attribute(node, "transB", 0):
                return _GEMM_TRANSPOSED_B
            if (node.op_type, position) == ("BatchNormalization", 1):
                for reader, _ in self.readers(node.output[0]):
                    if reader.op_type == "Sum":
                        made_by = {self._maker.get(term) for term in reader.input}
                        return _BESIDE_BATCH_NORM if made_by == {"BatchNormalization"} else _BESIDE_SHORTCUT
            if (node.op_type, position) in _FILLS:
                return _FILLS[node.op_type, position]
        return None


def _light_file(name: str) -> Path:
    if name not in LIGHT_MODELS:
        raise InputError(f"no light model `{name}`; there are: {', '.join(LIGHT_MODELS)}")
    return Path(onnx.__file__).parent / "backend" / "test" / "data" / "light" / f"light_{name}.onnx"


def light_model(name: str) -> onnx.ModelProto:
    """With random weights, the same for the same name, as constants; the picture is the only input."""
    model = onnx.load(_light_file(name.removeprefix("light_")))
    graph, uses = model.graph, _Uses(model.graph)
    values = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    shapes = {k: tuple(v.shape) for k, v in values.items() if v.dtype == np.float32}
    shapes |= {n.output[0]: tuple(values[n.input[0]]) for n in graph.node if n.op_type == "ConstantOfShape"}
    weights = {}
    for weight, shape in shapes.items():
        fill = uses.fill(weight)
        if fill is not None:
            rng = np.random.default_rng([0, zlib.crc32(weight.encode())])
            weights[weight] = fill(rng, tuple(int(d) for d in shape))

    nodes = [n for n in graph.node if n.op_type != "ConstantOfShape"]
    read = {i for n in nodes for i in n.input}
    constants = {k: v for k, v in values.items() if k in read} | weights
    fixed = helper.make_graph(
        nodes,
        graph.name,
        [i for i in graph.input if i.name in read and i.name not in constants],
        list(graph.output),
        [numpy_helper.from_array(v, k) for k, v in constants.items()],
    )
    return helper.make_model(fixed, opset_imports=model.opset_import, ir_version=8)


def random_inputs(
    model: onnx.ModelProto, seed: int = 0, shapes: Mapping[str, tuple[int, ...]] | None = None
) -> dict[str, np.ndarray]:
    """Random inputs of a model, by name.

    Floats are standard normal, integers in [0, 10), booleans a coin toss. Integers that choose among fewer rows of a
    table are smaller. A dim without a number is 1 unless ``shapes`` gives the input's shape.
    """
    rng = np.random.default_rng(seed)
    constants = {t.name: t.dims for t in model.graph.initializer}
    rows: dict[str, int] = {}
    for node in model.graph.node:
        if node.op_type == "Gather" and node.input[0] in constants:
            axis = next((a.i for a in node.attribute), 0)
            rows[node.input[1]] = max(1, min(rows.get(node.input[1], 10), constants[node.input[0]][axis]))
    inputs = {}
    for value in model.graph.input:
        if value.name in constants:
            continue
        kind = value.type.tensor_type
        shape = (shapes or {}).get(value.name) or tuple(d.dim_value or 1 for d in kind.shape.dim)
        dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
        if dtype.kind in "iu":
            array: np.ndarray = rng.integers(0, rows.get(value.name, 10), shape)
        elif dtype.kind == "b":
            array = rng.integers(0, 2, shape)
        else:
            array = rng.standard_normal(shape)
        inputs[value.name] = np.asarray(array, dtype=dtype)
    return inputs


@dataclass(frozen=True)
class Model:
    """A model to measure: made or read only when its turn comes, or the file of a compiled ``library``."""

    name: str
    read: Callable[[], onnx.ModelProto]
    library: Path | None = None


def find_model(name: str) -> Model:
    """A network of `LIGHT_MODELS` by its name, an ``.onnx`` file, or a library."""
    if name in LIGHT_MODELS:
        return Model(name, lambda: light_model(name))
    if Path(name).is_file():
        path = Path(name)
        return Model(path.stem, lambda: load_onnx(path), path if is_library(path) else None)
    raise InputError(
        f"no model `{name}`; expected an .onnx file, a compiled library or one of: {', '.join(LIGHT_MODELS)}"
    )


def saved(
    models: Sequence[Model],
    shapes: Mapping[str, Sequence[int | str]],
    given: Mapping[str, np.ndarray] | None = None,
    inputs_of: Callable[[onnx.ModelProto], Mapping[str, np.ndarray]] = random_inputs,
    batch: int | None = None,
) -> Iterator[tuple[Model, Mapping[str, np.ndarray], str]]:
    """Each model with these shapes: its inputs, and its file, which is gone when the next one is asked for."""
    with TemporaryDirectory() as folder:
        for model in models:
            if model.library is not None:
                with load(model.library, runtime="tvm") as runner:
                    known: dict[str, Sequence[int | str]] = {i.name: i.shape or () for i in runner.inputs}
                    asked = _batched(model.name, known, shapes, batch)
                    sizes = {
                        n: [d if isinstance(d, int) else 1 for d in dims] for n, dims in {**known, **asked}.items()
                    }
                    rows = None if given is None else _rows(given, asked, batch)
                    tensors = runner.random_tensors(0, sizes) if rows is None else runner.tensors((), rows)
                    inputs = {i.name: tensor.numpy() for i, tensor in zip(runner.inputs, tensors, strict=True)}
                yield model, inputs, str(model.library)
                continue
            proto = model.read()
            dims = {
                i.name: [d.dim_value or d.dim_param for d in i.type.tensor_type.shape.dim] for i in proto.graph.input
            }
            constants = {t.name for t in proto.graph.initializer}
            open_dims = {name: sizes for name, sizes in dims.items() if name not in constants}
            asked = _batched(model.name, open_dims, shapes, batch)
            proto = fix_shapes(proto, asked)
            path = Path(folder, f"{model.name}.onnx")
            onnx.save(proto, path)
            drawn = inputs_of(proto)
            rows = None if given is None else _ordered(_rows(given, asked, batch), drawn, model.name)
            yield model, drawn if rows is None else rows, str(path)
            path.unlink()


def _batched(
    model: str,
    dims: Mapping[str, Sequence[int | str]],
    shapes: Mapping[str, Sequence[int | str]],
    batch: int | None,
) -> Mapping[str, Sequence[int | str]]:
    """These shapes, with ``batch`` rows for the inputs whose first dim they leave open."""
    if batch is None:
        return shapes
    found = {
        name: [batch, *(size or f"{name}_{axis}" for axis, size in enumerate(sizes[1:], 1))]
        for name, sizes in {**dims, **shapes}.items()
        if len(sizes) and not isinstance(sizes[0], int)
    }
    if not found:
        raise InputError(f"{model} has no input whose first dim is open, for --batch; compile it with an open one")
    return {**shapes, **found}


def _rows(
    given: Mapping[str, np.ndarray], shapes: Mapping[str, Sequence[int | str]], batch: int | None
) -> Mapping[str, np.ndarray]:
    """As many rows as a batch has, of arrays whose rows are used again and again."""
    is_batch = {name for name, sizes in shapes.items() if len(sizes) and sizes[0] == batch}
    return {n: np.resize(a, (batch, *a.shape[1:])) if n in is_batch else a for n, a in given.items()}


def _ordered(given: Mapping[str, np.ndarray], names: Collection[str], model: str) -> dict[str, np.ndarray]:
    if set(given) != set(names):
        raise InputError(f"the inputs of {model} are {', '.join(names)}; the file has {', '.join(given)}")
    return {name: given[name] for name in names}
