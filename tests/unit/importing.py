"""Helpers for the tests of the frontend and of the preparing passes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

from tvm_byoc_dnnl.frontends import to_relax
from tvm_byoc_dnnl.prepare import Prepare
from tvm_byoc_dnnl.runtime.comparison import differences
from tvm_byoc_dnnl.testing.models import ort_run, random_inputs

node = helper.make_node


def rand(*shape: int, seed: int = 1, dtype: str = "float32") -> np.ndarray:
    """Standard normal noise."""
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def onnx_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Sequence[int | str]],
    constants: Mapping[str, Any] | None = None,
    *,
    opset: int = 17,
    outputs: Sequence[str] = ("y",),
    dtypes: Mapping[str, int] | None = None,
) -> onnx.ModelProto:
    """A model; inputs are float32 unless ``dtypes`` says otherwise, NumPy values become initialisers."""
    dtypes = dtypes or {}
    graph = helper.make_graph(
        list(nodes),
        "test",
        [helper.make_tensor_value_info(k, dtypes.get(k, TensorProto.FLOAT), list(v)) for k, v in inputs.items()],
        [helper.make_tensor_value_info(o, dtypes.get(o, TensorProto.FLOAT), None) for o in outputs],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in (constants or {}).items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def run(mod: tvm.IRModule, *arrays: np.ndarray) -> list[np.ndarray]:
    """Outputs of ``main``, compiled by stock TVM; what was imported is judged, not the speed of its code."""
    vm = relax.VirtualMachine(tvm.compile(mod, tvm.target.Target({"kind": "llvm", "opt-level": 0})), tvm.cpu())
    result = vm["main"](*[tvm.runtime.tensor(a) for a in arrays])
    return [result.numpy()] if hasattr(result, "numpy") else [r.numpy() for r in result]


def ops(mod: tvm.IRModule, function: str = "main") -> dict[str, int]:
    """The number of calls of each operator in a function, without the prefix ``relax.``."""
    count: Counter[str] = Counter()
    for block in mod[function].body.blocks:
        for binding in block.bindings:
            value = binding.value
            if isinstance(value, relax.Call):
                count[getattr(value.op, "name", "call").removeprefix("relax.")] += 1
    return dict(count)


def prepared(mod: tvm.IRModule) -> tvm.IRModule:
    """The module after `Prepare`, checked: well formed, and prepared again it stays the same."""
    result = Prepare()(mod)
    relax.analysis.well_formed(result)
    tvm.ir.assert_structural_equal(Prepare()(result), result)
    return result


def check(
    model: onnx.ModelProto,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    inputs: Mapping[str, np.ndarray] | None = None,
    tolerance: float = 1e-5,
) -> dict[str, int]:
    """Import, prepare, run with stock TVM and compare with ONNX Runtime; returns the operators.

    Inputs are noise of size 1, and so is what rounds where a result cancels.
    """
    feeds = dict(inputs) if inputs is not None else random_inputs(model, shapes=shapes)
    mod = prepared(to_relax(model, shapes=shapes))
    wrong = differences(run(mod, *feeds.values()), ort_run(model, feeds), tolerance, least=1.0)
    assert not wrong, wrong
    return ops(mod)


def module(build: Callable[..., Any], *shapes: Sequence[Any], dtype: str = "float32") -> tvm.IRModule:
    """A module whose ``main`` is one dataflow block; ``build(builder, *params)`` returns its value, or a tuple."""
    builder = relax.BlockBuilder()
    params = [relax.Var(f"x{i}", relax.TensorType(s, dtype)) for i, s in enumerate(shapes)]
    with builder.function("main", params):
        with builder.dataflow():
            result = build(builder, *params)
            out = builder.emit_output(relax.Tuple(result) if isinstance(result, tuple) else result)
        builder.emit_func_output(out)
    return builder.get()


def same_numbers(mod: tvm.IRModule, *arrays: np.ndarray, tolerance: float = 1e-5) -> dict[str, int]:
    """Prepare a module and compare its numbers before and after; returns the operators."""
    after = prepared(mod)
    wrong = differences(run(after, *arrays), run(mod, *arrays), tolerance, least=1.0)
    assert not wrong, wrong
    return ops(after)
