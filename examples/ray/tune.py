"""Measure a model on each type of CPU of a cluster, and keep all times in one file.

    pip install 'tvm-byoc-dnnl[ray]'
    RAY_ADDRESS=head:6379 python examples/ray/tune.py model.onnx times.jsonl --compiler dnnl,my_npu

`byoc.compile(..., database="times.jsonl")` then takes on each machine the times of its own CPU. Run it while the nodes
do nothing else.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import ray
from nodes import absolute, check_software, fetched, merged, on_each_node, start
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy


def cpu() -> str:
    """The name of this node's CPU."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def measured(model: str, compilers: list[str], budget: float, before: bytes) -> bytes:
    """The database after a search on this node, which begins with the times of ``before``."""
    import tvm_byoc_dnnl as byoc

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "times.jsonl"
        path.write_bytes(before)
        byoc.tune(fetched(model), compilers, budget=budget, database=path)
        return path.read_bytes()


def main() -> None:
    """Read the arguments, and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="its address, which all nodes can read")
    parser.add_argument("database", type=Path, help="the file of times; made, or extended")
    parser.add_argument("--compiler", default="dnnl", help="names, separated by commas")
    parser.add_argument("--budget", type=float, default=120.0, help="seconds on each type of CPU")
    arguments = parser.parse_args()
    start()
    check_software()
    of_type = {name: node for node, name in on_each_node(cpu).items()}  # one node of each
    ids = {node["NodeManagerAddress"]: node["NodeID"] for node in ray.nodes() if node["Alive"]}
    cores = {node["NodeID"]: node["Resources"].get("CPU", 1) for node in ray.nodes() if node["Alive"]}
    before = arguments.database.read_bytes() if arguments.database.exists() else b""
    asked = [
        ray.remote(measured)
        .options(
            num_cpus=cores[ids[node]],  # the whole node: neighbours would disturb the times
            max_retries=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(ids[node], soft=False),
        )
        .remote(absolute(arguments.model), arguments.compiler.split(","), arguments.budget, before)
        for node in of_type.values()
    ]
    aside = arguments.database.with_suffix(".new")
    aside.write_bytes(merged([before, *ray.get(asked)]))
    aside.rename(arguments.database)
    print("\n".join(f"measured on {node}: {name}" for name, node in of_type.items()))


if __name__ == "__main__":
    main()
