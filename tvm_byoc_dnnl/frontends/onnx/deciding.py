"""Inputs whose values decide shapes or axes of the compiled model: target shapes, axes, bounds, sizes.

ONNX lets a caller give them at run time. TVM wants them while it compiles, so a model that has such inputs is compiled
for the values of a call.
"""

from __future__ import annotations

import onnx

from .nodes import is_standard

__all__ = ["deciding_inputs", "with_constants"]

_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")

# Operator -> the inputs that decide its result's shape, or which elements it takes.
_DECIDING: dict[str, tuple[int, ...]] = {
    **{f"Reduce{kind}": (1,) for kind in _REDUCTIONS},
    **dict.fromkeys(("Expand", "Reshape", "Tile", "Unsqueeze", "Squeeze", "Split", "SplitToSequence"), (1,)),
    **dict.fromkeys(("AffineGrid", "CenterCropPad", "CumProd", "CumSum", "OneHot", "TopK", "Trilu", "Upsample"), (1,)),
    **dict.fromkeys(("BlackmanWindow", "ConstantOfShape", "HammingWindow", "HannWindow"), (0,)),
    **dict.fromkeys(("Col2Im", "DFT", "Dropout"), (1, 2)),
    "MaxUnpool": (2,),
    "MelWeightMatrix": (0, 1, 2, 3, 4),
    "NonMaxSuppression": (2, 3, 4),
    "Pad": (1, 2, 3),
    "Range": (0, 1, 2),
    "Resize": (1, 2, 3),
    "STFT": (1, 3),
    "SequenceAt": (1,),
    "SequenceErase": (1,),
    "SequenceInsert": (2,),
    "Slice": (1, 2, 3, 4),
}
# Operators whose results are never dims: the values that they read decide nothing.
_END = frozenset({"Shape", "Size"})


def deciding_inputs(model: onnx.ModelProto) -> list[str]:
    """Names of the inputs of a model whose values decide shapes or axes, in the model's order."""
    graph = model.graph
    known = {t.name for t in graph.initializer}
    makers = {name: node for node in graph.node for name in node.output}
    found: set[str] = set()
    pending = [
        node.input[i]
        for node in graph.node
        if is_standard(node)
        for i in _DECIDING.get(node.op_type, ())
        if i < len(node.input) and node.input[i]
    ]
    while pending:
        name = pending.pop()
        if name in found or name in known:
            continue
        found.add(name)
        maker = makers.get(name)
        if maker is not None and maker.op_type not in _END:
            pending.extend(i for i in maker.input if i)
    return [i.name for i in graph.input if i.name in found and i.type.HasField("tensor_type")]


def with_constants(model: onnx.ModelProto, values: dict[str, onnx.TensorProto]) -> onnx.ModelProto:
    """A copy of a model with inputs turned into initialisers."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    kept = [i for i in copy.graph.input if i.name not in values]
    del copy.graph.input[:]
    copy.graph.input.extend(kept)
    copy.graph.initializer.extend(values.values())
    return copy
