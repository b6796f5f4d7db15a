"""What the examples for Ray share: the same software on all nodes, files by their address, what is left to do."""

from __future__ import annotations

import json
import os
import platform
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("tvm-byoc-dnnl", "apache-tvm", "apache-tvm-ffi", "onednn-cpu-gomp", "numpy")


def software() -> dict[str, str]:
    """The versions in this process that a compiled model depends on."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "none"
    return found


def differences(of_nodes: Mapping[str, Mapping[str, str]]) -> list[str]:
    """A line for each part of the software that is not the same on all nodes."""
    lines = []
    for part in sorted({name for found in of_nodes.values() for name in found}):
        by_version: dict[str, list[str]] = {}
        for node, found in sorted(of_nodes.items()):
            by_version.setdefault(found.get(part, "none"), []).append(node)
        if len(by_version) > 1:
            lines.append(f"{part}: " + "; ".join(f"{v} on {', '.join(nodes)}" for v, nodes in by_version.items()))
    return lines


def on_each_node(function: Any, *arguments: Any) -> dict[str, Any]:
    """The result of a function on each node that is alive, by the node's address."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    task = ray.remote(num_cpus=0, max_retries=0)(function)
    asked = {
        node["NodeManagerAddress"]: task.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        ).remote(*arguments)
        for node in ray.nodes()
        if node["Alive"]
    }
    return dict(zip(asked, ray.get(list(asked.values()))))


def check_software() -> None:
    """End the program where the nodes have different versions."""
    if lines := differences(on_each_node(software)):
        raise SystemExit("the nodes have different software:\n  " + "\n  ".join(lines))


def start() -> None:
    """Connect to the cluster that RAY_ADDRESS names, or start one here; all nodes get this folder's modules."""
    import ray

    ray.init(runtime_env={"working_dir": str(Path(__file__).resolve().parent)})


def absolute(address: str) -> str:
    """An address that is the same in every process."""
    return address if "://" in address else str(Path(address).resolve())


def opened(address: str) -> tuple[Any, str]:
    """The file system of an address, and the path in it: ``s3://…``, ``gs://…``, a folder that all nodes have."""
    from pyarrow import fs

    return fs.FileSystem.from_uri(address if "://" in address else Path(absolute(address)).as_uri())


def fetched(address: str) -> str:
    """The path of a local copy of a file, one for all processes of this node; the file itself where it is local."""
    from pyarrow import fs

    system, path = opened(address)
    if isinstance(system, fs.LocalFileSystem):
        return path
    about = system.get_file_info(path)
    copy = Path(tempfile.gettempdir()) / f"{about.mtime_ns}-{about.size}-{Path(path).name}"
    if not copy.exists():
        aside = copy.with_suffix(f".{os.getpid()}")
        with system.open_input_stream(path) as source, aside.open("wb") as target:
            while part := source.read(1 << 20):
                target.write(part)
        aside.rename(copy)  # at once: another process may look for it
    return str(copy)


def left(inputs: Iterable[str], done: Iterable[str]) -> list[str]:
    """The inputs that no result has yet."""
    have = set(done)
    return sorted(path for path in inputs if path not in have)


def merged(databases: Sequence[bytes]) -> bytes:
    """Databases that `byoc.tune` has written on several types of CPU as one: each line says for which CPU it is.

    Of two lines for the same question the later one counts, as in one file. A line that was cut off is dropped.
    """
    lines: dict[bytes, None] = {}
    for database in databases:
        for line in database.split(b"\n"):
            try:
                json.loads(line)
            except ValueError:
                continue
            lines.pop(line, None)
            lines[line] = None
    return b"".join(line + b"\n" for line in lines)
