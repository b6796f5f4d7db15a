"""Quantised models, step by step.

Where a number lies on the edge between two integers, another order of summation decides which it becomes, and after
some dozen layers nothing is left to compare: ONNX Runtime with its optimiser differs from itself without. So a model
is cut at every QuantizeLinear: each piece starts from the integers that the reference had there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper

from tvm_byoc_dnnl.testing.models import ort_run

__all__ = ["Steps", "steps"]


@dataclass(frozen=True)
class Steps:
    """A model in pieces: every result of a quantisation is an input and an output of it.

    Attributes
    ----------
    model : ModelProto
        The pieces, side by side in one graph.
    inputs : dict
        The model's own, and the integers that ONNX Runtime has at each cut.
    wanted : dict
        ONNX Runtime's outputs, by name.
    """

    model: onnx.ModelProto
    inputs: Mapping[str, np.ndarray]
    wanted: Mapping[str, np.ndarray]


def steps(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray]) -> Steps:
    """Cut a model at every ``QuantizeLinear``."""
    types = {t.name: t.data_type for t in model.graph.initializer}
    cuts = {
        n.output[0]: types.get(n.input[2], TensorProto.UINT8) if len(n.input) > 2 else TensorProto.UINT8
        for n in model.graph.node
        if n.op_type == "QuantizeLinear"
    }
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    outputs = {o.name for o in whole.graph.output}
    whole.graph.output.extend(
        helper.make_tensor_value_info(name, kind, None) for name, kind in cuts.items() if name not in outputs
    )
    names = [o.name for o in whole.graph.output]
    wanted = dict(zip(names, ort_run(whole, inputs), strict=True))
    given = {name: f"{name}_given" for name in cuts}
    for node in whole.graph.node:
        node.input[:] = [given.get(name, name) for name in node.input]
    whole.graph.input.extend(
        helper.make_tensor_value_info(given[name], kind, wanted[name].shape) for name, kind in cuts.items()
    )
    return Steps(whole, {**inputs, **{given[name]: wanted[name] for name in cuts}}, wanted)
