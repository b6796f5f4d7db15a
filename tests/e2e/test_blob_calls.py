"""What a vendor's `run` of a blob does wrong is one error that names the region and the compiler."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import tvm
from click.testing import CliRunner
from tvm import relax

import tvm_byoc_dnnl as byoc
from tvm_byoc_dnnl.cli import cli
from tvm_byoc_dnnl.ir.relax_utils import global_var, module_of, op_calls

pytestmark = pytest.mark.native

VENDOR = "blob_npu"
X = np.array([[1.0, -2.0, 3.0], [-0.0, 5.0, float("nan")]], "float32")
READ = np.from_dlpack


def write(x, y):
    np.negative(READ(x), out=READ(y))


def returns(value):
    return lambda x, y: value(READ(x))


def leaves_the_last(x, y):
    READ(y)[0] = READ(x)[0]


def writes_its_argument(x, y):
    np.negative(READ(x), out=READ(y))
    READ(x)[0, 0] = 7


def writes_another_shape(x, y):
    np.copyto(READ(y), np.zeros((4, 4), "float32"))


def raises(error):
    def run(x, y):
        raise error

    return run


def model(dtype: str = "float32") -> tvm.IRModule:
    x = relax.Var("x", relax.TensorType(X.shape, dtype))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit_output(relax.op.negative(x))
        builder.emit_func_output(y)
    return builder.get()


@pytest.fixture
def vendor():
    def register(run, check=lambda words: True, load=None):
        byoc.register_annotate_compiler(VENDOR, ["relax.negative"])
        byoc.register_codegen(
            VENDOR, lambda fs, *_: [byoc.blob_module(VENDOR, str(f.attrs["global_symbol"]), b"1", "1") for f in fs]
        )
        byoc.register_blob_runner(VENDOR, check, load or (lambda data: run))

    yield register
    byoc.unregister_compiler(VENDOR)


def compiled(dtype: str = "float32"):
    return byoc.compile(model(dtype), VENDOR, policy=byoc.RegionPolicy(), strict=True)


WRONG = {
    "returns-it": (returns(np.negative), r"run returned ndarray float32\[2, 3\]; expected None: it writes the results"),
    "returns-another-shape": (returns(lambda x: x.sum()), r"run returned float32 float32\[\]; expected None"),
    "returns-another-dtype": (returns(lambda x: x.astype("int8")), r"run returned ndarray int8\[2, 3\]"),
    "returns-a-list": (returns(lambda x: [x, x]), "run returned list; expected None"),
    "returns-a-number": (returns(lambda x: 0), "run returned int; expected None"),
    "writes-nothing": (lambda x, y: None, "run did not write 6 of the 6 elements of result 0; expected every element"),
    "writes-a-part": (leaves_the_last, "run did not write 3 of the 6 elements of result 0"),
    "writes-its-argument": (writes_its_argument, "run wrote to argument 0; expected it to write to its last tensors"),
    "writes-another-shape": (writes_another_shape, "run raised ValueError: could not broadcast"),
    "takes-other-arguments": (lambda x: None, "run raised TypeError: .* takes 1 positional argument but 2 were given"),
    "raises": (raises(KeyError("stride")), "run raised KeyError: 'stride'"),
    "exits": (raises(SystemExit(3)), "run raised SystemExit: 3"),
    "raises-no-exception": (raises(GeneratorExit()), "run raised GeneratorExit"),
}


def test_a_tuple_in_the_result_counts_as_its_tensors(vendor):
    def run(x, *parts):
        for part, values in zip(parts, [*np.split(READ(x), 3, axis=1)] * 2, strict=True):
            np.copyto(READ(part), values)

    vendor(run)
    byoc.register_annotate_compiler(VENDOR, ["relax.split"])
    x = relax.Var("x", relax.TensorType(X.shape, "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            parts = builder.emit(relax.op.split(x, 3, axis=1))
            result = builder.emit_output(relax.Tuple([parts, parts]))
        builder.emit_func_output(result)
    executable = byoc.compile(builder.get(), VENDOR, policy=byoc.RegionPolicy(), strict=True)
    machine = relax.VirtualMachine(executable, tvm.cpu())
    for found in machine["main"](tvm.runtime.tensor(X)):
        np.testing.assert_array_equal(np.concatenate([part.numpy() for part in found], axis=1), X)


@pytest.mark.parametrize(("run", "message"), WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("saved", [False, True], ids=["module", "file"])
def test_a_wrong_call_is_an_error(vendor, run, message, saved, tmp_path):
    vendor(run)
    executable = compiled()
    if saved:
        executable.export_library(tmp_path / "m.so")
    runner = byoc.load(tmp_path / "m.so") if saved else byoc.Runner(executable)
    for _ in range(2):  # and so is the next one
        with pytest.raises(byoc.VendorError, match=f"region '{VENDOR}_0' of '{VENDOR}': {message}"):
            runner(X.copy())


def test_later_calls_are_checked_for_what_they_return_and_raise(vendor):
    answers = [None, X, ValueError("late")]

    def run(x, y):
        write(x, y)
        if isinstance(answer := answers.pop(0), Exception):
            raise answer
        return answer

    vendor(run)
    runner = byoc.Runner(compiled())
    np.testing.assert_array_equal(runner(X), -X)
    for message in ("returned ndarray", "raised ValueError: late"):
        with pytest.raises(byoc.VendorError, match=message):
            runner(X)


@pytest.mark.parametrize("value", [0xB7, 0x48])
def test_a_result_that_looks_as_if_it_was_not_written_is_right(vendor, value):
    calls = []

    def run(x, y):
        calls.append(1)
        READ(y).view(np.uint8)[...] = value

    vendor(run)
    runner = byoc.Runner(compiled("int8"))
    for _ in range(3):
        assert (np.asarray(runner(np.zeros(X.shape, "int8"))).view(np.uint8) == value).all()
    assert len(calls) == 3 + (value == 0xB7)  # looked at twice only where the bytes are those that are looked for


def test_ctrl_c_is_no_failure_of_the_vendor(vendor):
    vendor(raises(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        byoc.Runner(compiled())(X)


def test_an_error_of_this_package_keeps_its_class(vendor):
    vendor(raises(byoc.InputError("sizes of 3 only")))
    with pytest.raises(byoc.InputError, match="sizes of 3 only"):
        byoc.Runner(compiled())(X)


LOADING = {
    "load-returns-none": ({"load": lambda data: None}, r"TypeError: load returned None; expected a function run"),
    "load-returns-a-number": ({"load": lambda data: 3}, r"TypeError: load returned 3; expected a function run"),
    "load-raises": ({"load": lambda data: {}["v"]}, "KeyError: 'v'"),
    "load-exits": ({"load": lambda data: sys.exit("no device")}, "SystemExit: no device"),
    "check-returns-none": (
        {"check": lambda words: None},
        "the check of blobs of 'blob_npu' returned None; expected True",
    ),
    "check-returns-text": ({"check": lambda words: "old"}, "the check of blobs of 'blob_npu' returned 'old'"),
    "check-raises": ({"check": lambda words: {}["v"]}, "KeyError: 'v'"),
    "check-exits": ({"check": lambda words: sys.exit(1)}, "SystemExit: 1"),
    "check-refuses": ({"check": lambda words: byoc.Reject("it needs 2")}, "for another setting: it needs 2"),
}


@pytest.mark.parametrize(("parts", "message"), LOADING.values(), ids=LOADING)
def test_a_wrong_loader_is_an_error_of_loading(vendor, parts, message):
    vendor(write, **parts)
    executable = compiled()
    with pytest.raises(byoc.ArtifactError, match=f"region '{VENDOR}_0' was compiled by '{VENDOR}'.*{message}"):
        byoc.Runner(executable)


@pytest.mark.parametrize("parts", [{"check": lambda words: byoc.Reject("it needs 2")}, {"load": lambda data: None}])
@pytest.mark.parametrize("is_there", [True, False], ids=["no device", "no package"])
def test_a_library_is_described_where_its_device_is_not(vendor, parts, is_there, tmp_path):
    vendor(write, **parts)
    path = tmp_path / "m.so"
    compiled().export_library(path)
    if not is_there:
        byoc.unregister_compiler(VENDOR)
    (call,) = byoc.explain(path).calls
    assert (call.op, call.compiler) == ("relax.negative", VENDOR)
    listed = CliRunner().invoke(cli, ["inputs", str(path)])
    assert listed.output.startswith("input   x         float32[2, 3]\n")
    assert CliRunner().invoke(cli, ["lock", str(path)]).exit_code == 0
    assert f"{VENDOR}  1  relax.negative" in (tmp_path / "m.so.lock").read_text()
    with pytest.raises(byoc.ArtifactError, match=f"region '{VENDOR}_0' was compiled by '{VENDOR}'"):
        byoc.load(path)
    if not is_there:
        vendor(write)


def test_a_module_that_was_described_without_its_device_says_so_when_it_is_called(vendor):
    vendor(write, check=lambda words: byoc.Reject("it needs 2"))
    executable = compiled()
    module = executable.jit()
    byoc.explain(module)
    with pytest.raises(byoc.ArtifactError, match="for another setting: it needs 2"):
        byoc.Runner(module)(X)


@pytest.mark.parametrize("order", ["aab", "aba", "baa", "aabba", "abab"])
def test_equal_regions_of_a_module_that_another_pass_has_made(vendor, order):
    """Each is a function of its own, as TVM's MergeCompositeFunctions leaves them."""
    functions = {"a": np.negative, "b": np.abs}

    def load(data):
        return lambda x, y: np.copyto(READ(y), functions[data.decode()](READ(x)))

    def blobs(regions, *_):
        made = {"relax.negative": b"a", "relax.abs": b"b"}
        data = [made[next(op_calls(region))[1].op.name] for region in regions]
        symbols = [str(region.attrs["global_symbol"]) for region in regions]
        return [byoc.blob_module(VENDOR, *each, "1") for each in zip(symbols, data, strict=True)]

    vendor(None, load=load)
    byoc.register_codegen(VENDOR, blobs, override=True)
    ty = relax.TensorType(X.shape, "float32")
    regions = {}
    for number, letter in enumerate(order):
        x, ops = relax.Var("x", ty), {"a": relax.op.negative, "b": relax.op.abs}
        region = module_of([x], lambda _builder, x=x, op=ops[letter]: op(x))["main"]
        region = region.with_attr({"Codegen": VENDOR, "global_symbol": f"{VENDOR}_{number}"})
        regions[global_var(f"{VENDOR}_{number}", region)] = region
    x = relax.Var("x", ty)
    main = module_of([x], lambda builder: tuple(builder.emit(relax.Call(gv, [x])) for gv in regions))["main"]
    mod = tvm.IRModule({tvm.ir.GlobalVar("main"): main, **regions})
    executable = tvm.compile(mod, "llvm", relax_pipeline="byoc")
    results = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(X))
    for result, letter in zip(results, order, strict=True):
        np.testing.assert_array_equal(result.numpy(), functions[letter](X))
