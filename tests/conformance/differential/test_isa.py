"""Random functions on older instruction sets, each in a process of its own; `make test-isa` runs everything."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
# oneDNN's name -> the names that it may report: where the machine has less, it reports that
ISAS = {"SSE41": ["sse41"], "AVX2": ["avx2", "sse41"], "AVX512_CORE": ["avx512_core", "avx2", "sse41"]}

_CHILD = """
import sys
from tvm_byoc_dnnl.core import _native
print("isa", _native.engine_info("dnnl")["isa"])
from tests.conformance.differential.__main__ import main
sys.exit(main())
"""


@pytest.mark.parametrize("isa", ["SSE41", "AVX2", pytest.param("AVX512_CORE", marks=pytest.mark.sweep)])
def test_random_functions_on_an_older_instruction_set(isa: str, tmp_path: Path) -> None:
    arguments = ["--only", "--seed", "1", "--examples", "12"]
    env = os.environ | {"ONEDNN_MAX_CPU_ISA": isa, "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, *arguments], cwd=ROOT, env=env, text=True, capture_output=True, timeout=600
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-2000:]}"
    assert done.stdout.splitlines()[0].split()[1] in ISAS[isa]
    assert "'offloaded'" in done.stdout


_HALVES = """
from tests.harness import Case, data
from tvm import relax
for dtype in ("bfloat16", "float16"):
    Case(relax.op.nn.relu, (data(2, 3, dtype=dtype),)).offloads().matches()
"""


@pytest.mark.parametrize("isa", ISAS)
def test_a_dtype_that_an_instruction_set_lacks_is_computed_in_float32(isa: str) -> None:
    env = os.environ | {"ONEDNN_MAX_CPU_ISA": isa, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", _HALVES], cwd=ROOT, env=env, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr[-2000:]
