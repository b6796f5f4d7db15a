"""NNSmith's random models in our compiler and in ONNX Runtime; where they differ, onnx.reference judges.

    make test-nnsmith ARGS='--count 300 --seed 0'

A model that ONNX Runtime cannot run does not count. A report at the end has every model that differs or fails; the exit
status is 1 if we alone are wrong, or fail with something else than a refusal by name.
"""

from __future__ import annotations

import argparse
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.reference
import onnxruntime

import tvm_byoc_dnnl as byoc
from tvm_byoc_dnnl.core.errors import ByocError
from tvm_byoc_dnnl.runtime.comparison import differences, wrong

_ROOT = Path(__file__).parents[3]
_GENERATOR = Path(__file__).with_name("generate.py")
#: a model is a chain of many calls: each element counts for itself, and more is allowed than for one call
_RULE: dict[str, Any] = {
    "tolerance": {"float16": 2e-2, "float32": 1e-3, "float64": 1e-3},
    "least": 1.0,
    "elementwise": True,
}
_PERTURBATIONS = 20
#: what a model can come to, worst last
_OUTCOMES = (
    "the same",
    "ONNX Runtime cannot run it",
    "differs, the reference agrees with us",
    "differs, the reference has a third result or none",
    "differs by a rounding in front of a step",
    "refused by name",
    "wrong",
    "failed",
)


def main() -> int:
    """Generate, run, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0, help="of the first model; the others follow")
    parser.add_argument("--folder", type=Path, default=_ROOT / "build" / "nnsmith", help="where the models are kept")
    parser.add_argument("--python", default=str(_ROOT / ".venv-nnsmith" / "bin" / "python"), help="that has nnsmith")
    args = parser.parse_args()
    subprocess.run([args.python, _GENERATOR, args.folder, str(args.seed), str(args.count)], check=True)
    seeds = range(args.seed, args.seed + args.count)
    files = [path for seed in seeds if (path := args.folder / f"{seed}.onnx").exists()]
    counts: Counter[str] = Counter()
    for path in files:
        outcome, detail = judge(onnx.load(path), int(path.stem))
        counts[outcome] += 1
        if outcome not in _OUTCOMES[:2]:
            print(f"{path}: {outcome}: {detail}", flush=True)
    print(f"\n{len(files)} models of {args.count} seeds")
    for outcome in _OUTCOMES:
        print(f"{counts[outcome]:5} {outcome}")
    return 1 if counts["wrong"] or counts["failed"] else 0


def judge(model: onnx.ModelProto, seed: int) -> tuple[str, str]:
    """What a model comes to, and the words for it."""
    inputs = random_inputs(model, seed)
    try:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        wanted = session.run(None, inputs)
    except Exception as error:
        return "ONNX Runtime cannot run it", first_line(error)
    try:
        got = byoc.Runner(byoc.compile(model))(*inputs.values())
    except ByocError as error:
        return "refused by name", first_line(error)
    except Exception as error:
        return "failed", f"{type(error).__name__}: {first_line(error)}"
    results = list(got) if isinstance(got, (list, tuple)) else [got]
    differing = differences(results, wanted, **_RULE)
    if not differing:
        return "the same", ""
    try:
        with np.errstate(all="ignore"):
            judged = onnx.reference.ReferenceEvaluator(model).run(None, inputs)
    except Exception as error:
        return "differs, the reference has a third result or none", f"{differing}; {first_line(error)}"
    if not differences(results, judged, **_RULE):
        return "differs, the reference agrees with us", differing
    if differences(wanted, judged, **_RULE):
        return "differs, the reference has a third result or none", differing
    if _hangs_on_rounding(session, inputs, wanted, results):
        return "differs by a rounding in front of a step", differing
    return "wrong", differing


def _hangs_on_rounding(
    session: onnxruntime.InferenceSession,
    inputs: dict[str, np.ndarray],
    wanted: list[np.ndarray],
    got: list[np.ndarray],
) -> bool:
    """Whether ONNX Runtime itself answers otherwise, wherever we do, once inputs change by a few roundings."""
    rng = np.random.default_rng(0)
    wavering = [np.zeros(np.shape(w), bool) for w in wanted]
    for k in range(_PERTURBATIONS):  # each number for itself, or all together
        changed = {
            name: (x * (1 + np.finfo(x.dtype).eps * rng.integers(-4, 5, x.shape if k % 2 else ()))).astype(x.dtype)
            if x.dtype.kind == "f"
            else x
            for name, x in inputs.items()
        }
        for waver, first, other in zip(wavering, wanted, session.run(None, changed), strict=True):
            waver |= wrong(np.asarray(other), np.asarray(first), **_RULE)
    return not any(
        np.any(wrong(np.asarray(mine), np.asarray(theirs), **_RULE) & ~waver)
        for mine, theirs, waver in zip(got, wanted, wavering, strict=True)
    )


def random_inputs(model: onnx.ModelProto, seed: int) -> dict[str, np.ndarray]:
    """Numbers between 1 and 2 in floats, small ones in integers: NNSmith's own choice without a search."""
    rng = np.random.default_rng(seed)
    inputs = {}
    for value in model.graph.input:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        low, high = (0, 2) if dtype.kind == "b" else (1, 2) if dtype.kind == "f" else (1, 5)
        inputs[value.name] = np.asarray(rng.uniform(low, high, shape)).astype(dtype)
    return inputs


def first_line(error: Exception) -> str:
    """The last line of TVM's long messages is the one that says something."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0 if isinstance(error, ByocError) else -1][:300]


if __name__ == "__main__":
    raise SystemExit(main())
