"""Two convolutions, cascaded by tiles: the intermediate image never exists as a whole.

    x ── conv2d 3x3 ── relu ── conv2d 3x3 ── relu ── y

The Relax function becomes one TE graph. The scheduler below computes the result in bands of rows, and inside the
loop over the bands only the rows of the first convolution that the band needs: two more than the band has. The
buffers between the stages shrink with it, from an image each to a band each. (The convolutions do not pad: with
padding the first and the last band differ from the others, and TVM then keeps buffers of the full height.)

    python examples/te_cascade.py
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, s_tir, tirx
from tvm.relax import op

from tvm_byoc_dnnl.te import TEGraph, schedule_te, translate_to_te

CHANNELS, SIZE, BAND = 8, 36, 4


def two_convolutions() -> tvm.IRModule:
    """conv2d + relu, twice, with constant weights."""
    rng = np.random.default_rng(0)
    shape = (CHANNELS, CHANNELS, 3, 3)
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, CHANNELS, SIZE, SIZE), "float32"))
    with builder.function("main", [x]):
        y: relax.Expr = x
        for _ in range(2):
            weight = relax.const(rng.uniform(-0.2, 0.2, shape).astype("float32"))
            y = builder.emit(op.nn.relu(builder.emit(op.nn.conv2d(y, weight))))
        builder.emit_func_output(y)
    return builder.get()


def cascade(sch: s_tir.Schedule, graph: TEGraph) -> None:
    """Compute every stage inside the loop over the bands of the last one."""
    blocks = graph.blocks(sch)
    for stage in [stage for stage in blocks if stage.name == "pad_temp"]:
        sch.compute_inline(blocks.pop(stage))  # without padding it is a copy
    *producers, last = blocks.values()
    _, channel, row, _ = sch.get_loops(last)
    band, row = sch.split(row, [None, BAND])
    sch.reorder(band, channel, row)
    sch.parallel(band)
    for block in reversed(producers):
        sch.compute_at(block, band)


def largest_buffer(func: tirx.PrimFunc) -> int:
    """Elements of the largest buffer that the function allocates, after TVM has shrunk what it can."""
    shrink = tvm.ir.transform.Sequential(
        [
            s_tir.transform.LowerInitBlock(),
            s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
            s_tir.transform.ConvertBlocksToOpaque(),
            s_tir.transform.CompactBufferAllocation(),
        ]
    )
    sizes: list[int] = []

    def visit(block: Any) -> None:
        sizes.extend(math.prod(int(d) for d in buffer.shape) for buffer in block.alloc_buffers)

    lowered = shrink(tvm.IRModule({"main": func}))["main"]
    tvm_ffi.structural_walk(lowered.body, (type(lowered.body.block), visit), order="post")
    return max(sizes)


def run(mod: tvm.IRModule, x: np.ndarray) -> np.ndarray:
    """Compile the module and call its main function."""
    vm = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())
    return vm["main"](tvm.runtime.tensor(x)).numpy()


def cascaded(mod: tvm.IRModule) -> tuple[tvm.IRModule, tirx.PrimFunc, TEGraph]:
    """The module with its main function replaced by the cascade."""
    graph = translate_to_te((mod, "main"))
    func = schedule_te(graph, "llvm", cascade)
    builder = relax.BlockBuilder()
    x = relax.Var("x", mod["main"].params[0].ty)
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(graph.call(builder, [x], func)))
    return builder.get(), func, graph


def main() -> None:
    """Print the graph, the sizes of the intermediate, and the error against TVM."""
    mod = two_convolutions()
    replaced, func, graph = cascaded(mod)
    print(graph)
    print(f"largest intermediate: {largest_buffer(graph.to_primfunc())} elements, as a cascade {largest_buffer(func)}")
    x = np.random.default_rng(1).uniform(-1, 1, (1, CHANNELS, SIZE, SIZE)).astype("float32")
    print(f"largest difference: {np.abs(run(replaced, x) - run(mod, x)).max():.2g}")


if __name__ == "__main__":
    main()
