"""Measure the worth of a region: one operator, offloaded or not; ``python -m bench.regions [OP ...] [networks]``.

Each operator is measured between two cheap calls that stay with TVM, and alone: the numbers behind the default policy
of a namespace. Then networks that go back and forth between the two: without offloading, with everything that can be
offloaded, and by the default policy. OMP_NUM_THREADS=1 compares a thread of the library with TVM's one thread.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax

import tvm_byoc_dnnl as byoc
from tvm_byoc_dnnl.graph.cost import call_flops
from tvm_byoc_dnnl.ir.relax_utils import op_calls

_ROUNDS = 15
op, nn = relax.op, relax.op.nn


def _constant(*shape: int) -> relax.Expr:
    return relax.const(np.random.default_rng(0).standard_normal(shape).astype("float32") * 0.1)


#: name → (shape of the input for so many elements, operator)
_OPS: dict[str, tuple[Callable[[int], tuple[int, ...]], Callable[[Any], Any]]] = {}


def _case(name: str, shape: Callable[[int], tuple[int, ...]]) -> Callable[[Callable[[Any], Any]], Any]:
    def register(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
        _OPS[name] = (shape, make)
        return make

    return register


def _flat(n: int) -> tuple[int, ...]:
    return (n,)


def _rows(n: int) -> tuple[int, ...]:
    return (max(n // 64, 1), 64)


def _image(n: int) -> tuple[int, ...]:
    side = max(int((n / 16) ** 0.5), 4)
    return (1, 16, side, side)


_case("add", _flat)(lambda x: op.add(x, x))
_case("add a constant", _rows)(lambda x: op.add(x, _constant(64)))
_case("relu", _flat)(nn.relu)
_case("sqrt", _flat)(lambda x: op.sqrt(op.abs(x)))
_case("exp", _flat)(op.exp)
_case("tanh", _flat)(op.tanh)
_case("sigmoid", _flat)(op.sigmoid)
_case("gelu", _flat)(nn.gelu)
_case("4 cheap ones", _flat)(lambda x: op.abs(op.add(op.multiply(nn.relu(x), x), x)))
_case("softmax", _rows)(lambda x: nn.softmax(x, -1))
_case("layer_norm", _rows)(lambda x: nn.layer_norm(x, _constant(64), _constant(64), axes=[-1]))
_case("sum", _rows)(lambda x: op.sum(x, [-1], keepdims=True))
_case("max_pool2d 3x3", _image)(lambda x: nn.max_pool2d(x, (3, 3), (1, 1), padding=(1, 1)))
_case("max_pool2d 2x2/2", _image)(lambda x: nn.max_pool2d(x, (2, 2), (2, 2)))
_case("mean over H, W", _image)(lambda x: op.mean(x, [2, 3], keepdims=True))
_case("conv2d 1x1", _image)(lambda x: nn.conv2d(x, _constant(16, 16, 1, 1)))
_case("conv2d 3x3 depthwise", _image)(lambda x: nn.conv2d(x, _constant(16, 1, 3, 3), padding=1, groups=16))
_case("conv2d 3x3", _image)(lambda x: nn.conv2d(x, _constant(16, 16, 3, 3), padding=1))
_case("matmul", _rows)(lambda x: op.matmul(x, _constant(64, 64)))
_case("permute_dims", _rows)(lambda x: op.permute_dims(x, [1, 0]))
_case("concat", _rows)(lambda x: op.concat([x, x], axis=1))


def _module(make: Callable[[Any], Any], shape: tuple[int, ...], alone: bool) -> tuple[tvm.IRModule, int]:
    """The operator, between two cheap calls of TVM's unless it stands alone, and its operations."""
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            before = x if alone else bb.emit(op.floor(x))
            middle = bb.emit(make(before))
            after = bb.emit_output(middle if alone else op.floor(middle))
        bb.emit_func_output(after)
    mod = bb.get()
    return mod, sum(call_flops(call) for _, call in op_calls(mod["main"]) if call.op.name != "relax.floor")


def _runner(mod: tvm.IRModule, policy: byoc.RegionPolicy | None) -> Callable[[], Any]:
    vm = relax.VirtualMachine(byoc.compile(mod, policy=policy), tvm.cpu())
    shape = [int(d) for d in mod["main"].params[0].ty.shape.values]
    x = tvm.runtime.tensor(np.random.default_rng(0).standard_normal(shape).astype("float32"))
    main = vm["main"]
    return lambda: main(x)


def _times(runs: list[Callable[[], Any]]) -> list[float]:
    """Fastest turn of each, taken in turns; seconds per call."""
    best = [float("inf")] * len(runs)
    loops = []
    for run in runs:
        run()
        start = time.perf_counter()
        run()
        loops.append(max(1, int(2e-3 / max(time.perf_counter() - start, 1e-7))))
    for _ in range(_ROUNDS):
        for i, run in enumerate(runs):
            start = time.perf_counter()
            for _ in range(loops[i]):
                run()
            best[i] = min(best[i], (time.perf_counter() - start) / loops[i])
    return best


def _cheap_step(x: Any) -> list[Callable[[Any], Any]]:
    return [lambda y: op.add(y, x), op.floor, nn.relu, op.floor, lambda y: op.maximum(y, x), op.floor]


def _mixed_step(x: Any) -> list[Callable[[Any], Any]]:
    channels = int(x.ty.shape.values[1])
    weights = _constant(channels, channels, 3, 3)
    return [*_cheap_step(x), lambda y: nn.conv2d(y, weights, padding=1), op.floor, op.tanh, op.floor]


def _ping_pong(steps: Callable[[Any], list[Callable[[Any], Any]]], shape: tuple[int, ...]) -> tvm.IRModule:
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            y = x
            for step in steps(x) * 4:
                y = bb.emit(step(y))
            out = bb.emit_output(y)
        bb.emit_func_output(out)
    return bb.get()


def _networks() -> None:
    print(f"\n{'ping-pong, 4 rounds':30}{'TVM us':>12}{'everything us':>15}{'default us':>12}{'gain':>7}")
    for steps in (_cheap_step, _mixed_step):
        for shape in ((1, 8, 8, 8), (1, 16, 28, 28), (1, 32, 56, 56)):
            mod = _ping_pong(steps, shape)
            policies = [byoc.RegionPolicy(exclude=["*"]), byoc.RegionPolicy(), None]
            stock, everything, default = _times([_runner(mod, policy) for policy in policies])
            name = f"{'cheap' if steps is _cheap_step else 'mixed'} {shape}"
            print(f"{name:30}{stock * 1e6:12.1f}{everything * 1e6:15.1f}{default * 1e6:12.1f}{stock / default:7.2f}")


def main(names: list[str]) -> None:
    """Print a row per operator and size, then a row per network."""
    print(f"{'':22}{'':10}{'':10}{'--- between two of TVM ---':>30}{'--- alone ---':>30}")
    print(f"{'operator':22}{'elements':>10}{'MFLOP':>10}" + f"{'TVM us':>12}{'region us':>11}{'gain':>7}" * 2)
    for name in (n for n in names or list(_OPS) if n != "networks"):
        shape, make = _OPS[name]
        for size in (256, 2048, 16384, 131072, 1048576):
            row = ""
            for alone in (False, True):
                mod, flops = _module(make, shape(size), alone)
                runs = [_runner(mod, byoc.RegionPolicy(exclude=["*"])), _runner(mod, byoc.RegionPolicy())]
                tvm_time, region_time = _times(runs)
                row += f"{tvm_time * 1e6:12.1f}{region_time * 1e6:11.1f}{tvm_time / region_time:7.2f}"
            print(f"{name:22}{size:10}{flops / 1e6:10.3f}{row}", flush=True)
    if not names or "networks" in names:
        _networks()


if __name__ == "__main__":
    main(sys.argv[1:])
