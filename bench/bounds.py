"""How much a mixture of dnnl and OpenVINO can gain at most: ``python -m bench.bounds NETWORK...``.

Each library runs a whole network in a process of its own, the two take turns, and both say what each of their steps
took. The steps are added up by block (the blocks of `tune`). If each block took the shorter of the two times and
changing the library cost nothing, a mixture would take the sum of these. The better library alone, divided by this sum,
is the bound: no placement of blocks gains more. The second bound counts no changes of layout either.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import click
import numpy as np
from tvm import relax

import tvm_byoc_dnnl as byoc
from bench.placement import network
from tvm_byoc_dnnl.graph.cost import is_cheap
from tvm_byoc_dnnl.ir.relax_utils import codegen_of, is_op_call
from tvm_byoc_dnnl.tuning.plans import Planner, prepared
from tvm_byoc_dnnl.tuning.search import blocks_of

LIBRARIES = ("dnnl", "openvino")
NETWORKS = (
    *("squeezenet", "mobilenet_v2", "resnet18", "shufflenet", "inception_v1", "vit_tiny", "minilm", "page_orientation"),
    *("ocr_direction", "ocr_recognition", "body_parts", "face_refinement", "page_layout", "densenet121"),
)
_ROUNDS, _CALLS, _WARM_UP = 4, 8, 3

#: seconds of a whole call (`total`), and by block of its work and its changes of layout
Times = Mapping[str, Any]
#: the variables of a step, whether it only changes a layout, and its seconds
Step = tuple[list[str], bool, float]


def blocks(planner: Planner) -> list[list[str]]:
    """The variables of each block; cheap calls alone belong to the block before them."""
    found: list[list[str]] = []
    for bindings in blocks_of(planner):
        names = [b.var.name for b in bindings]
        if found and all(not is_op_call(b.value) or is_cheap(b.value) for b in bindings):
            found[-1] += names
        else:
            found.append(names)
    return found


def by_block(steps: Iterable[Step], place: Mapping[str, int]) -> dict[str, float]:
    """Seconds by block; a change of layout belongs to the step that it is made for."""
    found: dict[str, float] = defaultdict(float)
    waiting, block = 0.0, 0
    for names, is_layout, seconds in steps:
        known = [place[name] for name in names if name in place]
        if is_layout or not known:
            waiting += seconds
            continue
        block = max(known)
        found[f"work {block}"] += seconds
        found[f"layout {block}"] += waiting
        waiting = 0.0
    found[f"layout {block}"] += waiting
    return found


def dnnl_steps(mod: Any, planner: Planner) -> Callable[[], tuple[float, list[Step]]]:
    """One call, and its steps, by this package's profile."""
    runner = byoc.Runner(byoc.compile(mod, "dnnl"))
    names = [call.name for call in byoc.explain(mod, "dnnl").calls]

    def measure() -> tuple[float, list[Step]]:
        found = byoc.profile(runner, repeat=_CALLS, warmup=_WARM_UP)
        return found.total, [([names[i] for i in s.ids], s.is_reorder, s.seconds) for s in found.steps]

    return measure


def openvino_steps(mod: Any, planner: Planner) -> Callable[[], tuple[float, list[Step]]]:
    """The same by OpenVINO's counters; a second copy without counters is timed as a whole."""
    import openvino as ov

    alone = Planner(planner.mod, ["openvino"])
    regions = [f for f in alone.partitioned(alone.in_order(["openvino"])).functions.values() if codegen_of(f)]
    requests = []
    for region in regions:
        model = _named_model(region)
        for counts in (False, True):
            settings = {"PERFORMANCE_HINT": "LATENCY", "ENABLE_CPU_PINNING": False, "PERF_COUNT": counts}
            settings |= {"INFERENCE_NUM_THREADS": len(os.sched_getaffinity(0)), "INFERENCE_PRECISION_HINT": "f32"}
            compiled = ov.Core().compile_model(model, "CPU", settings)
            request = compiled.create_infer_request()
            for i, port in enumerate(compiled.inputs):
                request.set_input_tensor(i, ov.Tensor(np.random.default_rng(i).random(port.shape, np.float32)))
            requests.append((request, _origins(compiled), counts))

    def measure() -> tuple[float, list[Step]]:
        total, steps = 0.0, []
        for request, origins, counts in requests:
            for _ in range(_WARM_UP):
                request.infer()
            seconds, runs = [], defaultdict(list)
            for _ in range(_CALLS):
                start = time.perf_counter()
                request.infer()
                seconds.append(time.perf_counter() - start)
                for info in request.profiling_info if counts else ():
                    runs[info.node_name].append(info.real_time.total_seconds())
            total += 0.0 if counts else statistics.median(seconds)
            steps += [(origins.get(n, []), not origins.get(n), statistics.median(s)) for n, s in runs.items()]
        return total, steps

    return measure


def _named_model(region: relax.Function) -> Any:
    """The region's model; each node has the name of the variable that it computes."""
    import openvino as ov
    from openvino import opset13 as ops
    from tvm_byoc_openvino.operators import convert, parameter  # type: ignore[import-not-found]

    def run(func: relax.Function, arguments: Sequence[Any], caller: str) -> Any:
        known: dict[Any, Any] = dict(zip(func.params, arguments, strict=True))

        def value(expr: Any) -> Any:
            if isinstance(expr, relax.Tuple):
                return [value(field) for field in expr.fields]
            if isinstance(expr, relax.TupleGetItem):
                return value(expr.tuple_value)[expr.index]
            if not isinstance(expr, relax.Call):
                return known[expr]
            if expr.op in known:
                return run(known[expr.op], [value(arg) for arg in expr.args], name)
            return convert(expr, value)

        for binding in (b for block in func.body.blocks for b in block.bindings):
            name = caller or binding.var.name
            if isinstance(binding.value, relax.Function):
                known[binding.var] = binding.value
                continue
            known[binding.var] = value(binding.value)
            for output in flat(known[binding.var]):
                if output.get_node().get_type_name() != "Parameter":
                    output.get_node().set_friendly_name(f"{name}@{len(named)}")
                    named.append(output)
        return value(func.body.body)

    def flat(result: Any) -> list[Any]:
        return [o for item in result for o in flat(item)] if isinstance(result, list) else [result]

    named: list[Any] = []
    inputs = [parameter(p) for p in region.params]
    outputs = flat(run(region, [node.output(0) for node in inputs], ""))
    return ov.Model([ops.result(o) for o in dict.fromkeys(outputs)], inputs, "region")


def _origins(compiled: Any) -> dict[str, list[str]]:
    """Node of a compiled model -> the variables that it computes."""
    found = {}
    for node in compiled.get_runtime_model().get_ops():
        info = node.get_rt_info()
        names = info["originalLayersNames"].astype(str).split(",") if "originalLayersNames" in info else []
        found[node.get_friendly_name()] = [name.partition("@")[0] for name in names if "@" in name]
    return found


def serve(library: str, name: str) -> None:
    """A worker: prepares, then measures once for each line that it reads."""
    mod = network(name)
    planner = Planner(prepared(mod, LIBRARIES), LIBRARIES)
    parts = blocks(planner)
    place = {name: i for i, names in enumerate(parts) for name in names}
    measure = {"dnnl": dnnl_steps, "openvino": openvino_steps}[library](mod, planner)
    print(json.dumps({"blocks": len(parts)}), flush=True)
    for _ in sys.stdin:
        total, steps = measure()
        print(json.dumps({"total": total, **by_block(steps, place)}), flush=True)


def measured(name: str) -> tuple[int, list[Times]]:
    """The number of blocks, and the medians of each library."""
    command = [sys.executable, "-m", "bench.bounds", "--worker"]
    workers = [
        subprocess.Popen([*command, library, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for library in LIBRARIES
    ]
    try:
        counts = [json.loads(w.stdout.readline())["blocks"] for w in workers]  # type: ignore[union-attr]
        rounds: list[list[Times]] = [[] for _ in workers]
        for _ in range(_ROUNDS):
            for worker, mine in zip(workers, rounds, strict=True):
                worker.stdin.write("\n")  # type: ignore[union-attr]
                worker.stdin.flush()  # type: ignore[union-attr]
                mine.append(json.loads(worker.stdout.readline()))  # type: ignore[union-attr]
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
    return counts[0], [{k: statistics.median(r.get(k, 0.0) for r in mine) for k in {*mine[0]}} for mine in rounds]


def bound(count: int, times: Sequence[Times], *, with_layouts: bool) -> float:
    """The better library alone, divided by the sum over the blocks of the shorter time."""
    total, shortest = [0.0, 0.0], 0.0
    for i in range(count):
        work = [t.get(f"work {i}", 0.0) for t in times]
        both = [w + t.get(f"layout {i}", 0.0) for w, t in zip(work, times, strict=True)]
        total = [a + b for a, b in zip(total, both, strict=True)]
        candidates = both if with_layouts else work
        shortest += min(filter(None, candidates), default=0.0)  # one cannot take the block: the other one does
    return min(total) / shortest


@click.command(help=__doc__)
@click.argument("networks", nargs=-1)
@click.option("--worker", is_flag=True, hidden=True)
def main(networks: tuple[str, ...], worker: bool) -> None:
    """Print one row for each network."""
    if worker:
        serve(*networks)
        return
    print("| network | blocks | dnnl, ms | openvino, ms | bound | without changes of layout |\n" + "|---" * 6 + "|")
    found = []
    for name in networks or NETWORKS:
        count, times = measured(name)
        bounds = [bound(count, times, with_layouts=w) for w in (True, False)]
        found.append(bounds)
        walls = " | ".join(f"{1e3 * t['total']:.2f}" for t in times)
        print(f"| {name} | {count} | {walls} | {bounds[0]:.3f} | {bounds[1]:.3f} |", flush=True)
    means = " | ".join(f"{statistics.geometric_mean(b):.3f}" for b in zip(*found, strict=True))
    print(f"| geometric mean | | | | {means} |")


if __name__ == "__main__":
    main(prog_name="python -m bench.bounds")
