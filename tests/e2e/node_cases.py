"""One ONNX node beside ONNX Runtime: at top level, with open dims, and in a branch that is chosen in a call.

    Case("MultiHeadAttention", {"num_heads": 2}, query=data("B S 16"), key=data("B S 16"), value=data("B S 16"))

Letters are sizes of `SIZES`, and open dims in the models that have such.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import tvm_byoc_dnnl as byoc

__all__ = ["SIZES", "WHERE", "Case", "Given", "data", "given", "placed", "weight"]

SIZES = {"B": 2, "S": 5, "T": 7, "P": 4, "L": 9, "M": 3}
WHERE = ("top", "open", "branch")


@dataclass(frozen=True)
class Given:
    """An input of a case."""

    array: np.ndarray
    dims: tuple[str | int, ...]
    is_constant: bool = False
    kind: int | None = None  # ONNX's element type, where NumPy has none


def data(dims: str, *, dtype: str = "float32", low: float = 0, high: float = 0) -> Any:
    """An input of random numbers, normal ones or from ``low`` up to ``high``; drawn when the case is made."""
    return ("random", dims, dtype, low, high, False)


def weight(dims: str, *, dtype: str = "float32", low: float = 0, high: float = 0) -> Any:
    """A constant of random numbers."""
    return ("random", dims, dtype, low, high, True)


def given(
    values: Any, dtype: str, dims: str | None = None, *, constant: bool = False, kind: int | None = None
) -> Given:
    """An input of these numbers, perhaps with open dims."""
    array = np.asarray(values).astype(dtype)
    return Given(array, tuple(array.shape) if dims is None else _dims(dims), constant, kind)


def _dims(text: str) -> tuple[str | int, ...]:
    return tuple(int(d) if d.isdigit() else d for d in text.split())


def _drawn(rng: np.random.Generator, dims: str, dtype: str, low: float, high: float, constant: bool) -> Given:
    named = _dims(dims)
    shape = tuple(d if isinstance(d, int) else SIZES[d] for d in named)
    if high > low:
        array = rng.uniform(low, high, shape) if dtype.startswith("float") else rng.integers(int(low), int(high), shape)
    else:
        array = rng.standard_normal(shape)
    return Given(array.astype(dtype), named, constant)


@dataclass
class Case:
    """One node, what it reads, and how its results may differ from ONNX Runtime's."""

    op: str
    attrs: dict[str, Any]
    inputs: dict[str, Given] = field(default_factory=dict)
    outputs: Sequence[str] = ("y",)
    domain: str = "com.microsoft"
    opset: int = 21
    rtol: float = 2e-4
    atol: float = 2e-5
    id: str = ""

    def __init__(
        self,
        op: str,
        attrs: Mapping[str, Any] | None = None,
        *,
        outputs: Sequence[str] = ("y",),
        domain: str = "com.microsoft",
        opset: int = 21,
        rtol: float = 2e-4,
        atol: float = 2e-5,
        seed: int = 0,
        title: str = "",
        compared: Any = None,
        order: Sequence[str] = (),
        floats: Sequence[str] = (),
        reference: Any = None,
        **inputs: Any,
    ) -> None:
        rng = np.random.default_rng(seed)
        self.op, self.attrs, self.outputs = op, dict(attrs or {}), outputs
        self.domain, self.opset, self.rtol, self.atol = domain, opset, rtol, atol
        made = {k: _drawn(rng, *v[1:]) if isinstance(v, tuple) else v for k, v in inputs.items()}
        names = list(order) or list(made)
        self.names = [n if n in made else "" for n in names]
        while self.names and not self.names[-1]:
            self.names.pop()
        self.inputs = made
        self.reference = reference  # by NumPy, for what ONNX Runtime does not compute on a CPU
        self.floats = floats  # outputs of float32, whose type ONNX Runtime does not find
        self.compared = compared or (lambda arrays: arrays)
        self.id = f"{op}: {title or ' '.join(f'{k}={v}' for k, v in self.attrs.items())}"

    @property
    def feeds(self) -> dict[str, np.ndarray]:
        """The inputs of a call."""
        return {name: g.array for name, g in self.inputs.items() if not g.is_constant}

    def model(self, where: str = "top") -> onnx.ModelProto:
        """The node as a model."""
        node = helper.make_node(self.op, self.names, list(self.outputs), "the_node", domain=self.domain, **self.attrs)
        wanted = [o for o in self.outputs if o]
        results = [helper.make_empty_tensor_value_info(o) for o in wanted]
        values, constants = [], []
        for name, g in self.inputs.items():
            kind = g.kind or int(helper.np_dtype_to_tensor_dtype(g.array.dtype))
            if g.is_constant:
                constants.append(_tensor(name, kind, g.array))
                continue
            dims = list(g.dims) if where == "open" else list(g.array.shape)
            values.append(helper.make_tensor_value_info(name, kind, dims))
        nodes = [node]
        if where == "branch":
            values.append(helper.make_tensor_value_info("flag", onnx.TensorProto.BOOL, []))
            branches = []
            for suffix in ("then", "else"):
                inner = onnx.NodeProto()
                inner.CopyFrom(node)
                del inner.output[:]
                inner.output.extend(f"{o}_{suffix}" if o else "" for o in self.outputs)
                outs = [helper.make_empty_tensor_value_info(f"{o}_{suffix}") for o in wanted]
                branches.append(helper.make_graph([inner], suffix, [], outs))
            nodes = [helper.make_node("If", ["flag"], wanted, "if", then_branch=branches[0], else_branch=branches[1])]
        graph = helper.make_graph(nodes, "g", values, results, constants)
        opsets = {"": self.opset, "com.microsoft": 1, self.domain: self.opset if not self.domain else 1}
        return helper.make_model(
            graph, opset_imports=[helper.make_opsetid(d, v) for d, v in opsets.items()], ir_version=10
        )

    def expected(self) -> list[np.ndarray]:
        """The results of the reference, or of ONNX Runtime without its optimiser."""
        if self.reference is not None:
            found = self.reference(*(g.array for g in self.inputs.values()))
            like = "int32" if "Integer" in self.op else next(iter(self.inputs.values())).array.dtype
            return [np.asarray(a, like) for a in (found if isinstance(found, list) else [found])]
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = 1
        options.log_severity_level = 4
        session = ort.InferenceSession(self._typed().SerializeToString(), options, providers=["CPUExecutionProvider"])
        return list(session.run(None, self.feeds))

    def _typed(self) -> onnx.ModelProto:
        model = self.model()
        del model.graph.output[:]
        for name in filter(None, self.outputs):
            kind = onnx.TensorProto.FLOAT
            known = helper.make_tensor_value_info(name, kind, None) if name in self.floats else None
            model.graph.output.append(known or onnx.ValueInfoProto(name=name))
        return model

    def got(self, where: str) -> list[np.ndarray]:
        """Our results."""
        feeds = {**self.feeds, **({"flag": np.array(True)} if where == "branch" else {})}
        found = byoc.Runner(byoc.compile(self.model(where)))(**feeds)
        return [np.asarray(v) for v in (found if isinstance(found, list) else [found])]

    def check(self, where: str) -> None:
        """Compare."""
        got, want = self.compared(self.got(where)), self.compared(self.expected())
        for a, b in zip(got, want, strict=True):
            assert a.dtype == b.dtype, (a.dtype, b.dtype)
            assert a.shape == b.shape, (a.shape, b.shape)
            np.testing.assert_allclose(a, b, rtol=self.rtol, atol=self.atol)


def placed(cases: Sequence[Case]) -> list[Any]:
    """Every case with open dims, every second at top level, and every third in a branch."""
    return [
        pytest.param(case, where, id=f"{case.id}-{where}")
        for i, case in enumerate(cases)
        for where, step in (("open", 1), ("top", 2), ("branch", 3))
        if i % step == 0
    ]


def _tensor(name: str, kind: int, array: np.ndarray) -> onnx.TensorProto:
    if int(helper.np_dtype_to_tensor_dtype(array.dtype)) == kind:
        return onnx.numpy_helper.from_array(np.ascontiguousarray(array), name)
    return helper.make_tensor(name, kind, array.shape, array.reshape(-1).tolist())
