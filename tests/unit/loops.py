"""Models with loops, compared with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.unit.importing import node
from tvm_byoc_dnnl import Runner, compile
from tvm_byoc_dnnl.runtime.comparison import differences
from tvm_byoc_dnnl.testing.models import ort_run

NUMBER, FLAG = TensorProto.INT64, TensorProto.BOOL
TYPES = {"n": NUMBER, "c": FLAG}
SCALARS = ("k", "go", "on")


def body(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[str],
    outputs: Sequence[str],
    constants: Mapping[str, Any] | None = None,
    **types: int,
) -> onnx.GraphProto:
    """A subgraph; its values are float32 of any shape, but for ``types``, and ``k`` and ``go`` of a loop."""
    types = {"k": NUMBER, "go": FLAG, "on": FLAG, **types}
    values = [
        [
            helper.make_tensor_value_info(
                name, types.get(name, TensorProto.FLOAT), [] if name.startswith(SCALARS) else None
            )
            for name in names
        ]
        for names in (inputs, outputs)
    ]
    tensors = [numpy_helper.from_array(np.asarray(v), k) for k, v in (constants or {}).items()]
    return helper.make_graph(list(nodes), "body", *values, tensors)


def goes_on() -> onnx.NodeProto:
    return node("Identity", ["go"], ["on"])


def agree(model: onnx.ModelProto, *calls: Mapping[str, Any], runner: Runner | None = None) -> Runner:
    """Compare calls of one compiled model; ONNX Runtime gives results of no rounds the rank 1 if it knows no shape."""
    runner = runner or Runner(compile(model))
    for feeds in calls:
        arrays = {name: np.asarray(value) for name, value in feeds.items()}
        got, wanted = runner(*arrays.values()), ort_run(model, arrays)
        got = list(got) if isinstance(got, (list, tuple)) else [got]
        wanted = [
            w.reshape(g.shape) if w.shape == (0,) and g.size == 0 else w for g, w in zip(got, wanted, strict=True)
        ]
        wrong = differences(got, wanted, 1e-5, least=1.0)
        assert not wrong, wrong
    return runner


def loop(inner: onnx.GraphProto, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> onnx.NodeProto:
    return node("Loop", list(inputs), list(outputs), "rounds", body=inner, **attributes)
