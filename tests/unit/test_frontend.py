"""`to_relax`: kinds of models, shapes, names, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
from tvm import relax, tirx

from tests.harness import assert_right
from tests.unit.importing import check, module, node, onnx_model, ops, prepared, rand, run
from tvm_byoc_dnnl import Runner, compile, explain, profile, verify
from tvm_byoc_dnnl.core.errors import InputError, UnsupportedError
from tvm_byoc_dnnl.frontends import to_relax
from tvm_byoc_dnnl.testing.models import LIGHT_MODELS, light_model, ort_run, random_inputs

CONV = [node("Conv", ["x", "w"], ["y"])]
OPEN = {"x": ("n", 3, "h", "w_")}
W = {"w": rand(4, 3, 3, 3)}


# ---- kinds ------------------------------------------------------------------------------------------


def test_irmodule_is_returned_as_it_is() -> None:
    mod = module(lambda b, x: b.emit(relax.op.nn.relu(x)), (2, 3))
    assert to_relax(mod) is mod


def test_path(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(onnx_model(CONV, {"x": (1, 3, 8, 8)}, W), path)
    for given in (path, str(path)):
        assert ops(to_relax(given)) == {"nn.conv2d": 1}


def test_weights_beside_the_file(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    model = onnx_model(CONV, {"x": (1, 3, 8, 8)}, {"w": rand(64, 3, 5, 5)})
    x = rand(1, 3, 8, 8)
    (want,) = ort_run(model, {"x": x})
    onnx.save(model, path, save_as_external_data=True, size_threshold=0)  # moves the weights out of `model` too
    assert_right(run(to_relax(path), x)[0], want, 1e-4, least=1.0, elementwise=True)
    with pytest.raises(InputError, match="weights lie in files beside it"):
        to_relax(onnx.load(path, load_external_data=False))
    next(f for f in tmp_path.iterdir() if f != path).unlink()
    with pytest.raises(InputError, match=r"cannot read .*m\.onnx"):
        to_relax(path)


def test_the_model_is_not_changed() -> None:
    model = onnx_model([node("Resize", ["x", "r", "s"], ["y"])], {"x": (1, 3, 4, "w")}, {
        "r": np.zeros(0, "float32"), "s": np.array([1, 1, 2, 2], "float32")})  # fmt: skip
    before = model.SerializeToString(deterministic=True)
    to_relax(model, shapes={"x": (1, 3, 4, 5)})
    assert model.SerializeToString(deterministic=True) == before


def test_torch_program() -> None:
    torch = pytest.importorskip("torch")
    linear = torch.nn.Linear(4, 3)
    x = torch.randn(2, 4)
    mod = to_relax(torch.export.export(linear, (x,)))
    assert_right(run(mod, x.numpy())[0], linear(x).detach().numpy(), 1e-5, least=1.0, elementwise=True)


def test_nothing_is_imported_before_it_is_needed() -> None:
    # TVM's FFI imports torch itself where it is installed.
    code = """
import sys, tvm
before = set(sys.modules)
import tvm_byoc_dnnl.frontends
print([m for m in ("onnx", "torch") if m in sys.modules and m not in before])
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


# ---- shapes and names -------------------------------------------------------------------------------


def test_open_dims_stay_symbols() -> None:
    mod = to_relax(onnx_model(CONV, OPEN, W))
    assert [str(d) for d in mod["main"].params[0].ty.shape] == ["n", "T.int64(3)", "h", "w_"]


def test_shapes_fix_open_dims() -> None:
    mod = to_relax(onnx_model(CONV, OPEN, W), shapes={"x": (1, 3, 8, 9)})
    assert [int(d) for d in mod["main"].ret_ty.shape] == [1, 4, 6, 7]


def test_names_of_the_model_are_kept() -> None:
    nodes = [node("Relu", ["data/0:a"], ["out.1"]), node("Neg", ["2"], ["out.2"])]
    mod = to_relax(onnx_model(nodes, {"data/0:a": (2,), "2": (2,)}, outputs=["out.1", "out.2"]))
    assert list(mod["main"].attrs["input_names"]) == ["data/0:a", "2"]
    assert list(mod["main"].attrs["output_names"]) == ["out.1", "out.2"]
    assert int(mod["main"].attrs["num_input"]) == 2


def _add(a: tuple[object, ...], b: tuple[object, ...]) -> onnx.ModelProto:
    return onnx_model([node("Add", ["a", "b"], ["y"])], {"a": a, "b": b})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("a", "b", "a_shape", "b_shape"),
    [
        (("?", 3, "?"), (1, 3, 1), (2, 3, 4), (1, 3, 1)),
        (("p2o.Dynamic.0", 3), ("p2o.Dynamic.0", 3), (2, 3), (2, 3)),
        (("", "-1"), (1, 1), (2, 3), (1, 1)),
        (("None", "none"), (1, 1), (2, 3), (1, 1)),
        (("größe", "批"), ("größe", 1), (2, 3), (2, 1)),
        (("y", "x"), ("y", 1), (2, 3), (2, 1)),
        (("a", "b"), ("a", "b"), (2, 3), (2, 3)),
        (("lambda", "max"), ("lambda", 1), (2, 3), (2, 1)),
        (("floor(h/2)", "a b"), ("floor(h/2)", "a b"), (2, 3), (2, 3)),
        (("1 + 2*n", "n"), (1, "n"), (7, 3), (1, 3)),
        (("n*2", 1), (1, 3), (8, 1), (1, 3)),
        (("2", "n"), (2, 1), (2, 3), (2, 1)),
        (("0", "n"), (1, 1), (0, 3), (1, 1)),
    ],
    ids=str,
)
def test_any_name_of_a_dim(a: object, b: object, a_shape: object, b_shape: object) -> None:
    """Names that are no identifiers, one name twice, none, and those of tensors and of Python's own words."""
    model = _add(a, b)  # type: ignore[arg-type]
    x, y = rand(*a_shape), rand(*b_shape)  # type: ignore[misc]
    symbols = {s for p in to_relax(model)["main"].params for d in p.ty.shape for s in tirx.analysis.undefined_vars(d)}
    assert all(symbol.name.isidentifier() and symbol.name.isascii() for symbol in symbols)
    got = Runner(compile(model))(x, y)
    np.testing.assert_array_equal(got, x + y)
    assert [c.compiler for c in explain(model).calls] == ["dnnl"]


def test_dims_without_a_name_are_different_symbols() -> None:
    nodes = [node("Relu", ["a"], ["y"]), node("Relu", ["b"], ["z"])]
    mod = to_relax(onnx_model(nodes, {"a": ("?", "?", "None"), "b": ("?", "", "None")}, outputs=("y", "z")))
    dims = [d for p in mod["main"].params for d in p.ty.shape]
    assert len(set(dims)) == len({d.name for d in dims}) == 6


def test_a_sum_of_dims_is_computed_in_the_right_order() -> None:
    mod = to_relax(_add(("1 + 2*n", "n"), (1, "n")))
    n = mod["main"].params[0].ty.shape[1]
    tvm.ir.assert_structural_equal(mod["main"].params[0].ty.shape[0], 1 + 2 * n)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"z": (1, 3, 8, 8)}, r"`z`, which is no input.*`x` \(n, 3, h, w_\)"),
        ({"x": (1, 3, 8)}, r"\(1, 3, 8\) for `x`.*one positive number per dimension"),
        ({"x": (1, 4, 8, 8)}, r"\(1, 4, 8, 8\) for `x`, which the model fixes to \(n, 3, h, w_\)"),
        ({"x": (0, 3, 8, 8)}, "one positive number"),
    ],
    ids=["name", "rank", "fixed dim", "zero"],
)
def test_shapes_that_do_not_fit(shapes: dict[str, tuple[int, ...]], message: str) -> None:
    with pytest.raises(InputError, match=message):
        to_relax(onnx_model(CONV, OPEN, W), shapes=shapes)


def test_shapes_for_a_module_are_refused() -> None:
    with pytest.raises(InputError, match="IRModule carries its own"):
        to_relax(module(lambda b, x: b.emit(relax.op.nn.relu(x)), (2, 3)), shapes={"x": (1,)})


# ---- what is refused --------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [3, None, np.zeros(3), [1]], ids=["int", "none", "array", "list"])
def test_other_kinds_are_refused(model: object) -> None:
    with pytest.raises(InputError, match="give an IRModule"):
        to_relax(model)


def test_a_module_without_a_function_to_call_is_refused() -> None:
    private = module(lambda b, x: x, (2,))["main"].without_attr("global_symbol")
    with pytest.raises(InputError, match="no public Relax function; expected one to call, such as `main`"):
        to_relax(tvm.IRModule({"main": private}))
    for function in (verify, profile):
        with pytest.raises(InputError, match="no Relax function; expected one to call, such as `main`"):
            function(tvm.IRModule())


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no file"):
        to_relax(tmp_path / "none.onnx")
    damaged = tmp_path / "damaged.onnx"
    damaged.write_bytes(b"\x93damaged" * 20)
    with pytest.raises(InputError, match=r"cannot read .*damaged\.onnx"):
        to_relax(damaged)
    empty = tmp_path / "empty.onnx"
    empty.write_bytes(b"")
    with pytest.raises(InputError, match="no outputs"):
        to_relax(empty)


def test_unknown_operators_are_all_named() -> None:
    nodes = [
        node("ImageDecoder", ["x"], ["a"], name="first"),
        node("Foo", ["a"], ["b"], domain="acme"),
        node("ImageDecoder", ["b"], ["y"], name="second"),
    ]
    with pytest.raises(
        UnsupportedError, match=r"operators ai\.onnx\.ImageDecoder \(node `first`\), acme\.Foo \(node `b`\)"
    ):
        to_relax(onnx_model(nodes, {"x": (2, 2)}))


def test_another_domain_does_not_pass_for_onnx() -> None:
    with pytest.raises(UnsupportedError, match=r"acme\.Relu"):
        to_relax(onnx_model([node("Relu", ["x"], ["y"], domain="acme")], {"x": (2, 2)}))


# ---- whole networks ---------------------------------------------------------------------------------


def test_light_models_are_reproducible_and_alive() -> None:
    model = light_model("squeezenet")
    again = light_model("squeezenet")
    assert model.SerializeToString(deterministic=True) == again.SerializeToString(deterministic=True)
    assert [i.name for i in model.graph.input] == ["data_0"]
    (out,) = ort_run(model, random_inputs(model))
    assert out.std() > 1e-4
    assert np.unique(out).size > 500
    with pytest.raises(InputError, match="squeezenet"):
        light_model("resnet5")


def test_squeezenet() -> None:
    got = check(light_model("squeezenet"))
    assert got == {
        "nn.conv2d": 26, "add": 26, "nn.relu": 26, "nn.max_pool2d": 3, "concat": 8, "mean": 1, "nn.softmax": 1,
    }  # fmt: skip


def test_raw_light_file() -> None:
    """As it ships: opset 9, ir_version 3, weights made by ConstantOfShape and repeated as inputs."""
    path = Path(onnx.__file__).parent / "backend/test/data/light/light_squeezenet.onnx"
    assert ops(prepared(to_relax(path))) == ops(prepared(to_relax(light_model("squeezenet"))))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(m, marks=[pytest.mark.sweep] if m in ("vgg19", "zfnet512", "bvlc_alexnet") else [])  # many weights
        for m in LIGHT_MODELS
        if m != "squeezenet"
    ],
)
def test_operators_of_light_models(name: str) -> None:
    got = ops(prepared(to_relax(light_model(name))))
    assert "nn.batch_norm" not in got or name == "densenet121"
    assert not {"stack", "broadcast_to", "nn.dropout", "permute_dims"} & set(got) or name == "shufflenet"


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(m, marks=[] if m == "shufflenet" else pytest.mark.sweep)
        for m in LIGHT_MODELS
        if m not in ("squeezenet", "vgg19", "bvlc_alexnet")
    ],
)
def test_numbers_of_light_models(name: str) -> None:
    check(light_model(name), tolerance=1e-4)


# ---- names in place of sizes ------------------------------------------------------------------------


def test_names_leave_dims_open_and_rename_their_like() -> None:
    nodes = [node("Add", ["x", "m"], ["a"]), node("Add", ["a", "w"], ["y"])]
    model = onnx_model(nodes, {"x": ("batch", 3, "h"), "m": ("batch", 1, 1)}, {"w": rand(3, 8)})
    x, m = to_relax(model, shapes={"x": ("N", 3, 8)})["main"].params
    assert [str(d) for d in x.ty.shape] == ["N", "T.int64(3)", "T.int64(8)"]
    assert m.ty.shape[0].same_as(x.ty.shape[0])


def test_one_name_for_two_dims_makes_them_equal() -> None:
    mod = to_relax(_add(("a", "b"), ("a", "b")), shapes={"a": ("N", "N"), "b": ("N", "N")})
    assert len({d for p in mod["main"].params for d in p.ty.shape}) == 1


@pytest.mark.parametrize("dim", ["-1", "", "a b"])
def test_what_is_no_name_of_a_dim(dim: str) -> None:
    with pytest.raises(InputError, match="a name such as N"):
        to_relax(_add(("n", 3), (1, 3)), shapes={"a": (dim, 3)})


def test_a_fixed_dim_cannot_be_opened() -> None:
    with pytest.raises(InputError, match="only open dimensions can be given"):
        to_relax(_add((2, 3), (1, 3)), shapes={"a": ("N", 3)})


def test_advice_is_given_for_what_tvm_cannot_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: object, **_options: object) -> None:
        raise tvm.error.InternalError("k and m cannot be compared\n\nand a long dump")

    monkeypatch.setattr(tvm, "compile", fail)
    with pytest.raises(UnsupportedError, match=r"TVM cannot compile .*--shape a=1,128 --shape b=1,128") as error:
        compile(_add(("n", "k"), ("n", "m")))
    assert "\n" not in str(error.value)
    assert "k and m cannot be compared" in str(error.value)
