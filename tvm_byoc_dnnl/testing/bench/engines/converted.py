"""For engines with a file format of their own: the converter of a wheel, and the shapes that the ONNX file promises."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx


def convert(program: str | Path, arguments: Sequence[str], result: Path) -> None:
    """Run a converter that a wheel has installed beside Python, and check that it wrote ``result``.

    MNN's converter installs a client for its telemetry with whatever pip is first on the path, and protobuf of another
    version with it: no index, no installation.
    """
    found = Path(sys.executable).with_name(program) if isinstance(program, str) else program
    command = [str(found), *arguments]
    done = subprocess.run(command, env=os.environ | {"PIP_NO_INDEX": "1"}, text=True, capture_output=True, check=False)
    if not result.is_file():
        lines = (done.stdout + done.stderr).strip().splitlines()
        raise RuntimeError(f"{found.name} made no model: {lines[-1] if lines else f'status {done.returncode}'}")


def output_shapes(path: str) -> dict[str, tuple[int, ...]]:
    """Name → shape of the outputs of an ONNX file; 0 for a dim that it leaves open."""
    outputs = onnx.load(path, load_external_data=False).graph.output
    return {o.name: tuple(d.dim_value for d in o.type.tensor_type.shape.dim) for o in outputs}


def shaped(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The array in the shape that is promised, where that is one for its number of elements."""
    return array.reshape(shape) if np.prod(shape) == array.size else array
