"""Random ONNX models by NNSmith, one file per seed; runs in NNSmith's own environment, `.venv-nnsmith`.

.venv-nnsmith/bin/python tests/conformance/nnsmith/generate.py FOLDER FIRST_SEED COUNT
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import onnx
from nnsmith.abstract.extension import activate_ext
from nnsmith.graph_gen import model_gen
from nnsmith.materialize import Model
from nnsmith.narrow_spec import auto_opset

_MOST_NODES, _MOST_ELEMENTS, _MILLISECONDS = 10, 2**12, 20_000


def main(folder: Path, first: int, count: int) -> None:
    """Write ``FOLDER/SEED.onnx`` for each seed that there is a model for."""
    folder.mkdir(parents=True, exist_ok=True)
    kind = Model.init("onnx")
    kind.add_seed_setter()
    opset = auto_opset(kind, None)
    activate_ext(opset=opset, factory=None)
    for seed in range(first, first + count):
        path = folder / f"{seed}.onnx"
        if path.exists():
            continue
        try:
            found = model_gen(
                opset=opset,
                method="symbolic-cinit",
                seed=seed,
                max_elem_per_tensor=_MOST_ELEMENTS,
                max_nodes=_MOST_NODES,
                timeout_ms=_MILLISECONDS,
            )
            model = kind.from_gir(found.make_concrete())
            model.refine_weights()
            onnx.save(model.native_model, path)
        except Exception as error:  # no solution, or PyTorch cannot export it
            print(f"{seed}: no model: {type(error).__name__}: {str(error).splitlines()[0][:100]}", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
