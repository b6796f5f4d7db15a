"""Writes the golden library and the golden graph: `make golden`, on a deliberate change of a format only.

The files of the formats before stay, to show that they are refused by a clear error, or still work.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import tvm
from tvm import relax

import tvm_byoc_dnnl as byoc
from tvm_byoc_dnnl.core import _native
from tvm_byoc_dnnl.graph import VERSION, Constant, Input, PortableGraph, Tensor
from tvm_byoc_dnnl.graph.node_list import Node, NodeList, PostOp, Scaling
from tvm_byoc_dnnl.ir.relax_utils import make_constant

WEIGHT = (np.arange(24, dtype="float32").reshape(6, 4) - 11) / 8
BIAS = np.array([0.5, -0.25, 0, 1], "float32")


def model() -> tvm.IRModule:
    """[n, 6] -> relu(x @ WEIGHT + BIAS): one region with a symbol, post-ops and two constants."""
    x = relax.Var("x", relax.TensorType((tvm.tirx.Var("n", "int64"), 6), "float32"))
    bb = relax.BlockBuilder()
    with bb.function("main", [x]):
        with bb.dataflow():
            y = bb.emit(relax.op.matmul(x, make_constant(WEIGHT)))
            y = bb.emit_output(relax.op.nn.relu(bb.emit(relax.op.add(y, make_constant(BIAS)))))
        bb.emit_func_output(y)
    return bb.get()


def graph() -> PortableGraph:
    """All that a document can say: symbols, shapes, post-ops, scales, an alias, numbers that are not finite."""
    tensors = [
        Tensor("uint8", ("n", 8, 5, 5), "x"),
        Tensor("float32", ("n", 4), "cache"),
        Tensor("int8", (4, 8, 5, 5), "w"),
        Tensor("float32", (1,), "x_scale"),
        Tensor("int32", (1,), "x_zero_point"),
        Tensor("float32", (4,), "w_scale"),
        Tensor("float32", (4,), "bias"),
        Tensor("int64", (3,), "rows"),
        Tensor("float32", ("n", 4, 1, 1)),
        Tensor("float32", ("n", 4)),
        Tensor("float32", ("n", 4)),
        Tensor("float32", (("*", "n", 2), 2)),
        Tensor("int8", (3, 4)),
        Tensor("int8", ("n", 4)),
    ]
    window = {"strides": [1, 1], "dilations": [1, 1], "pad_begin": [0, 0], "pad_end": [0, 0]}
    nodes = [
        Node(
            "convolution",
            (0, 2, 6),
            (8,),
            window,
            [PostOp("eltwise", "relu", 0.0, 0.0)],
            ["relax.nn.conv2d", "relax.nn.relu"],
            scalings={0: Scaling(3, 4), 1: Scaling(scale=5, axis=0)},
            calls=[0, 1],
        ),
        Node("reshape", (8,), (9,)),
        Node(
            "eltwise",
            (9, 1),
            (10,),
            {"alg": "clip", "alpha": float("-inf"), "beta": 6.0},
            [PostOp("binary", "add", input=1)],
        ),
        Node("reshape", (10,), (11,)),
        Node("reorder", (10,), (13,), result_scaling=Scaling(3, 4)),
        Node("gather", (13, 7), (12,), {"alg": "from_end", "axis": 0}),
    ]
    return PortableGraph(
        "dnnl_0",
        tensors,
        [Input(tensor=0), Input(tensor=1, alias=0), Input(shape=(("*", "n", 2), 2))],
        [Constant(i, f"dnnl_0_const_{i}") for i in range(2, 8)],
        NodeList(nodes),
        [10, 11, 12],
    ).validate()


def graph_path(version: int) -> Path:
    return Path(__file__).parent / f"graph{version}.json"


def format_version() -> int:
    """That of the installed library."""
    return json.loads(_native.function("tvm_byoc_dnnl.Info")())["format_version"]


def path_of(version: int) -> Path:
    return Path(__file__).parent / f"format{version}.library"  # a shared library; *.so is what git ignores


def main() -> None:
    path = path_of(format_version())
    small = ["-s", "-Wl,-z,noseparate-code", "-Wl,-z,max-page-size=4096", "-Wl,--build-id=none"]
    byoc.compile(model()).export_library(path, options=small)
    path.chmod(0o644)
    print(f"{path}: {path.stat().st_size} bytes")
    graph_path(VERSION).write_text(json.dumps(graph().to_dict(), indent=1) + "\n")
    print(graph_path(VERSION))


if __name__ == "__main__":
    main()
