"""A model as C source: compiled by gcc against libdnnl alone, run without Python, the module's numbers to the bit."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax

import tvm_byoc_dnnl as byoc
from tests.harness import Case, assert_right, const, data
from tvm_byoc_dnnl.testing.models import light_model, random_inputs

GCC = shutil.which("gcc")


def branches(x, y, w):
    """The second input is used first, and both inputs and outputs have different sizes."""
    h = relax.op.matmul(y, x)
    return relax.op.nn.relu(relax.op.matmul(h, w)), relax.op.nn.softmax(h, axis=-1)


def blocks(x, w):
    """Views of blocked layouts, a padding, a residual sum."""
    y = relax.op.nn.relu(relax.op.nn.conv2d(x, w, padding=1))
    part = relax.op.strided_slice(relax.op.concat([y, x], axis=1), [1], [8], [40])
    pooled = relax.op.nn.max_pool2d(relax.op.nn.pad(y, [0, 0, 0, 0, 1, 1, 1, 1]), (3, 3))
    return relax.op.add(relax.op.nn.conv2d(part, w, padding=1), pooled)


def columns(x, w):
    """Images with short rows: what is asked of oneDNN is one row of them, what stands around it is not."""
    y = relax.op.nn.relu(relax.op.nn.conv2d(x, w, padding=[2, 0]))
    y = relax.op.add(relax.op.nn.conv2d(y, w, padding=[2, 0]), x)
    return relax.op.concat([y, relax.op.nn.max_pool2d(y, (3, 1), padding=[1, 0])], axis=1)


def bytes_between(x, w, scale, zero):
    """Resampling, group normalisation, and bytes with a post-op between floats."""
    y = relax.op.image.resize2d(x, (10, 14), layout="NCHW")
    y = relax.op.nn.group_norm(y, w, w, num_groups=2, channel_axis=1, axes=[2, 3])
    stored = relax.op.quantize(y, scale, zero, axis=1, out_dtype="uint8")
    return relax.op.dequantize(relax.op.flip(stored, 1), scale, zero, axis=1)


BRANCHES = Case(branches, (data(8, 8), data(5, 8), const(8, 6)))
BLOCKS = Case(blocks, (data(2, 32, 12, 12), const(32, 32, 3, 3, low=-0.1, high=0.1)))
COLUMNS = Case(columns, (data(2, 32, 40, 2), const(32, 32, 5, 1, low=-0.1, high=0.1)))
BYTES = Case(
    bytes_between, (data(1, 4, 5, 7), const(4), const(values=np.float32(0.02)), const(values=128, dtype="uint8"))
)


def dnnl_prefix() -> Path | None:
    """Where the headers and the library of oneDNN are."""
    import importlib.metadata

    try:
        wheel = importlib.metadata.distribution("onednn-devel-cpu-gomp")
    except importlib.metadata.PackageNotFoundError:
        return None
    header = next((f for f in wheel.files or () if f.name == "dnnl.h" and f.parent.name == "include"), None)
    return None if header is None else Path(str(wheel.locate_file(header))).resolve().parents[1]


PREFIX = dnnl_prefix()
pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(GCC is None or PREFIX is None, reason="needs gcc and oneDNN's headers"),
]


def compile_program(folder: Path, *flags: str) -> Path:
    sources = sorted(p.name for p in folder.glob("*.c"))
    libraries = [f"-L{PREFIX}/lib", "-ldnnl", f"-Wl,-rpath,{PREFIX}/lib"]
    command = [str(GCC), "-O2", "-Wall", "-Wextra", "-Werror", f"-I{PREFIX}/include", *flags, *sources]
    subprocess.run([*command, "-o", "program", *(["-x", "none"] if flags else []), *libraries], cwd=folder, check=True)
    return folder / "program"


def run_program(program: Path, arguments: list[np.ndarray]) -> np.ndarray:
    (program.parent / "in.bin").write_bytes(b"".join(np.ascontiguousarray(a).tobytes() for a in arguments))
    subprocess.run([program, "weights.bin", "in.bin", "out.bin"], cwd=program.parent, check=True)
    return np.fromfile(program.parent / "out.bin", "float32")


@pytest.mark.parametrize("name", ["squeezenet", pytest.param("resnet50", marks=pytest.mark.sweep)])
def test_a_network_gives_the_same_bits(name, tmp_path):
    model = light_model(name)
    mod = byoc.partition(byoc.to_relax(model))
    files = byoc.emit(model, tmp_path)
    inputs = random_inputs(model)
    want = byoc.Runner(tvm.compile(mod, "llvm", relax_pipeline="byoc"))(inputs)
    assert np.ptp(want) > 0

    program = compile_program(tmp_path)
    np.testing.assert_array_equal(run_program(program, list(inputs.values())), want.reshape(-1))

    texts = [f.read_bytes() for f in files]
    assert [f.read_bytes() for f in byoc.emit(mod, tmp_path)] == texts
    assert b"relax.nn.conv2d" in texts[0]


@pytest.mark.parametrize("option", [{"finite_math": True}, {"keep_nan": True}, {"precision": "bfloat16"}], ids=str)
def test_a_program_is_made_with_the_options_of_the_module(option, tmp_path):
    case = Case(lambda x, w: relax.op.matmul(relax.op.nn.relu(relax.op.exp(x)), w), (data(64, 128), const(128, 256)))
    mod = byoc.set_target_options(case.partitioned, "dnnl", **option)
    texts = [byoc.emit(each, tmp_path)[0].read_text() for each in (case.partitioned, mod)]
    assert texts[0] != texts[1]


@pytest.mark.parametrize(
    ("case", "flags"),
    [
        pytest.param(case, flags, id=f"{name}-{language}", marks=[] if name == first else pytest.mark.sweep)
        for language, first, flags in (("c", "bytes", ["-std=c99"]), ("c++", "branches", ["-x", "c++", "-std=c++17"]))
        for name, case in (("branches", BRANCHES), ("blocks", BLOCKS), ("columns", COLUMNS), ("bytes", BYTES))
    ],
)
def test_inputs_and_outputs_in_order_in_either_language(case, flags, tmp_path):
    case.offloads()
    byoc.emit(case.partitioned, tmp_path)
    got = run_program(
        compile_program(tmp_path, *flags), [a for o, a in zip(case.operands, case.arrays) if not o.constant]
    )
    np.testing.assert_array_equal(got, np.concatenate([r.reshape(-1) for r in case.run()]))


@pytest.mark.parametrize("flags", [("-std=c99",), ("-x", "c++", "-std=c++17", "-fopenmp")], ids=["c", "c++, OpenMP"])
def test_all_kernels_stand_in_one_program(flags, tmp_path):
    """C has no two functions of one name, whatever their arguments are."""
    folders = [Path(__file__).parents[2] / "codegen_src" / name for name in ("kernels", "executor")]
    kernels = [path.name for path in sorted(folders[0].glob("byoc_*.h"))]
    parts = "_body.h", "each_isa.h"  # included several times
    whole = [name for name in kernels if not name.endswith(parts) and "vector" not in name]
    lines = [f'#include "{name}"\n' for name in whole]
    tiles = [line for line in lines if "byoc_split" in line]  # not for every compiler
    others = [line for line in lines if line not in tiles]
    (tmp_path / "all.c").write_text(
        "".join(['#include "byoc_run.h"\n', *others, "#if BYOC_HAS_AMX\n", *tiles, "#endif\n"])
    )
    includes = [f"-I{folder}" for folder in folders]
    command = [GCC, *flags, "-Wall", "-Wextra", "-Werror", "-fsyntax-only", *includes, tmp_path / "all.c"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_elsewhere_it_gives_right_numbers_or_a_message(tmp_path):
    """Layouts and scratchpads depend on threads and CPU; what the program must not do is compute in the wrong ones."""
    byoc.emit(BLOCKS.partitioned, tmp_path)
    program = compile_program(tmp_path)
    want = run_program(program, [BLOCKS.arrays[0]])
    for change in ({"OMP_NUM_THREADS": "1"}, {"OMP_NUM_THREADS": "8"}, {"ONEDNN_MAX_CPU_ISA": "SSE41"}):
        (tmp_path / "out.bin").unlink(missing_ok=True)
        environment = {**os.environ, **change}
        files = ["weights.bin", "in.bin", "out.bin"]
        done = subprocess.run([program, *files], cwd=tmp_path, env=environment, capture_output=True, text=True)
        if done.returncode:
            assert "Emit it again" in done.stderr
        else:
            assert_right(np.fromfile(tmp_path / "out.bin", "float32"), want, 1e-5, least=1.0, elementwise=True)


@pytest.mark.sweep
@pytest.mark.parametrize("case", [BRANCHES, BLOCKS], ids=["branches", "blocks"])
def test_the_program_gives_back_all_memory(case, tmp_path):
    byoc.emit(case.partitioned, tmp_path)
    empty = tmp_path / "empty.c"
    empty.write_text("int main(void) { return 0; }\n")
    sanitize = ["-g", "-fsanitize=address,undefined", "-fno-sanitize-recover"]
    if subprocess.run([str(GCC), *sanitize, str(empty), "-o", str(tmp_path / "empty")], capture_output=True).returncode:
        pytest.skip("this gcc has no sanitizers")
    empty.unlink()
    sources = sorted(p.name for p in tmp_path.glob("*.c"))
    libraries = [f"-L{PREFIX}/lib", "-ldnnl", f"-Wl,-rpath,{PREFIX}/lib"]
    command = [str(GCC), *sanitize, f"-I{PREFIX}/include", *sources, "-o", "program", *libraries]
    subprocess.run(command, cwd=tmp_path, check=True)
    inputs = [a for o, a in zip(case.operands, case.arrays, strict=True) if not o.constant]
    got = run_program(tmp_path / "program", inputs)
    np.testing.assert_array_equal(got, np.concatenate([r.reshape(-1) for r in case.run()]))


def test_wrong_files_are_refused(tmp_path):
    byoc.emit(BRANCHES.partitioned, tmp_path)
    program = compile_program(tmp_path)
    (tmp_path / "in.bin").write_bytes(b"\0" * 12)
    done = subprocess.run([program, "weights.bin", "in.bin", "out.bin"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and "in.bin: has fewer bytes, expected 416" in done.stderr
    assert subprocess.run([program], capture_output=True).returncode == 2
    weights = bytearray((tmp_path / "weights.bin").read_bytes())
    weights[len(weights) // 2] ^= 1
    (tmp_path / "weights.bin").write_bytes(weights)
    (tmp_path / "in.bin").write_bytes(b"\0" * 416)
    done = subprocess.run([program, "weights.bin", "in.bin", "out.bin"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and "weights.bin: damaged: constant" in done.stderr


def test_what_is_no_single_region_is_refused(tmp_path):
    case = Case(lambda x, w: relax.op.cumsum(relax.op.matmul(x, w), axis=1), (data(64, 64), const(64, 64)))
    assert case.regions
    with pytest.raises(byoc.UnsupportedError, match=r"cumsum.*one call of one region"):
        byoc.emit(case.partitioned, tmp_path / "none")
    with pytest.raises(byoc.UnsupportedError, match="0 calls of regions"):
        byoc.emit(case.module, tmp_path / "none", [])
    with pytest.raises(FileNotFoundError, match=r"no file `model\.onnx`"):
        byoc.emit("model.onnx", tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_field_of_a_tuple_is_no_argument_of_a_program(tmp_path):
    pair = relax.Var("pair", relax.TupleType([relax.TensorType((64, 64), "float32")] * 2))
    builder = relax.BlockBuilder()
    with builder.function("main", [pair]):
        with builder.dataflow():
            second, first = (builder.emit(relax.TupleGetItem(pair, i)) for i in (1, 0))
            product = builder.emit_output(relax.op.matmul(second, first))
        builder.emit_func_output(product)
    with pytest.raises(byoc.UnsupportedError, match="argument 0 of dnnl_0 is not a parameter of `main`"):
        byoc.emit(byoc.partition(builder.get()), tmp_path / "none")


def test_symbolic_shapes_are_refused(tmp_path):
    case = Case(lambda x, w: relax.op.matmul(x, w), (data("n", 64), const(64, 64)), symbols={"n": 32})
    assert case.regions
    with pytest.raises(byoc.UnsupportedError, match="expected static ones"):
        byoc.emit(case.partitioned, tmp_path)
