"""Options of a namespace: declared with defaults, checked, and read by hooks and codegens."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from click.testing import CliRunner

import tvm_byoc_dnnl as byoc
from tests.c_kernel import c_kernel, c_module
from tests.e2e.hook_vendor import SUBTRACT, VENDOR, Add, X, Y, run, vendor  # noqa: F401 (a fixture)
from tests.harness import assert_right
from tvm_byoc_dnnl.cli import cli, main
from tvm_byoc_dnnl.core.compilation import read_log
from tvm_byoc_dnnl.core.errors import InputError
from tvm_byoc_dnnl.vendors.namespaces import get_target_options, parse_option


def test_options_are_checked():
    byoc.register_target_hooks(VENDOR, relax_to_tir=SUBTRACT, options={"level": 2, "fast": False, "scale": 1.0})
    assert get_target_options(Add, VENDOR) == {"level": 2, "fast": False, "scale": 1.0}
    mod = byoc.set_target_options(Add, VENDOR, level=3, scale=2)
    assert get_target_options(mod, VENDOR) == {"level": 3, "fast": False, "scale": 2}
    assert get_target_options(byoc.partition(mod, VENDOR), VENDOR)["level"] == 3
    with pytest.raises(InputError, match=r"no option 'lvl'; its options and their defaults: level=2, fast=False"):
        byoc.set_target_options(Add, VENDOR, lvl=3)
    with pytest.raises(InputError, match=r"option 'level' of .* is 'high'; expected int"):
        byoc.set_target_options(Add, VENDOR, level="high")
    with pytest.raises(InputError, match=r"option 'level' of .* is True; expected int"):
        byoc.set_target_options(Add, VENDOR, level=True)


def test_an_option_has_one_default():
    byoc.register_target_hooks(VENDOR, options={"level": 2})
    with pytest.raises(ValueError, match=r"the default of option 'level' is 3, and 2 where the namespace declared it"):
        byoc.register_codegen(VENDOR, lambda functions, options, names: [], options={"level": 3})
    with pytest.raises(TypeError, match=r"the default of option 'widths' is \[1\]; expected a bool, int, float or str"):
        byoc.register_codegen(VENDOR, lambda functions, options, names: [], options={"widths": [1]})


def scaling_codegen(seen):
    """A codegen of ``scale · (x + y)`` that notes its options."""

    def codegen(functions, options, _constants):
        seen.append(dict(options))
        sources = [
            (f.attrs["global_symbol"], f"a[2][i] = {options['scale']:f}f * (a[0][i] + a[1][i]);") for f in functions
        ]
        return [c_module(name, c_kernel(name, body)) for name, body in sources]

    return codegen


def test_options_reach_the_codegen_from_the_first_attempt_on():
    seen = []
    byoc.register_codegen(VENDOR, scaling_codegen(seen), options={"scale": 1.0, "mode": "fast"})
    assert_right(run(byoc.compile(Add, VENDOR), X, Y)[0], X + Y, 0)
    assert {(o["scale"], o["mode"]) for o in seen} == {(1.0, "fast")}
    seen.clear()
    executable = byoc.compile(Add, VENDOR, options={VENDOR: {"scale": 3.0}})
    assert_right(run(executable, X, Y)[0], 3 * (X + Y), 0)
    assert {(o["scale"], o["mode"]) for o in seen} == {(3.0, "fast")}
    assert len(seen) > 1  # partitioning tried it too


def test_options_reach_the_hooks_from_the_first_attempt_on():
    seen = []

    @tvm.transform.module_pass(opt_level=0)
    def note(mod, _context):
        seen.append(get_target_options(mod, VENDOR)["level"])
        return SUBTRACT(mod)

    byoc.register_target_hooks(VENDOR, relax_to_tir=note, options={"level": 2})
    np.testing.assert_array_equal(run(byoc.compile(Add, VENDOR, options={VENDOR: {"level": 7}}), X, Y)[0], X - Y)
    assert set(seen) == {7}
    assert len(seen) > 1


def test_a_region_that_only_an_option_makes_impossible_goes_back():
    def codegen(functions, options, _constants):
        raise RuntimeError(f"mode {options['mode']} does not exist")

    byoc.register_codegen(VENDOR, codegen, options={"mode": "fast"})
    mod = byoc.partition(Add, VENDOR, options={VENDOR: {"mode": "odd"}})
    (entry,) = read_log(mod)
    assert "mode odd does not exist" in entry.reason


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({VENDOR: {"lvl": 1}}, "has no option 'lvl'; its options and their defaults: level=2"),
        ({VENDOR: {"level": "1"}}, "option 'level' of .* is '1'; expected int"),
        ({VENDOR: 3}, "the options of .* are 3; expected a dict, option → value"),
        ({"dnnl": {"level": 3}}, "'dnnl' has no option 'level'; its options and their defaults: output='module'"),
    ],
)
def test_wrong_options_are_refused_before_the_work(options, reason):
    byoc.register_target_hooks(VENDOR, relax_to_tir=SUBTRACT, options={"level": 2})
    with pytest.raises(InputError, match=reason):
        byoc.compile(Add, VENDOR, options=options)


@pytest.mark.parametrize(
    ("text", "value"), [("level=3", 3), ("fast=true", True), ("fast=0", False), ("scale=2", 2.0), ("name=a=b", "a=b")]
)
def test_an_option_as_text(text, value):
    byoc.register_target_hooks(VENDOR, options={"level": 2, "fast": False, "scale": 1.0, "name": ""})
    option = text.split("=")[0]
    assert parse_option(f"{VENDOR}.{text}") == (VENDOR, option, value)
    assert type(parse_option(f"{VENDOR}.{text}")[2]) is type(value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("level", "got 'level'; expected NAMESPACE.OPTION=VALUE"),
        (f"{VENDOR}.level", "expected NAMESPACE.OPTION=VALUE"),
        (f"{VENDOR}.level=high", "option 'level' of .* is 'high'; expected int"),
        (f"{VENDOR}.fast=maybe", "option 'fast' of .* is 'maybe'; expected true or false"),
        (f"{VENDOR}.lvl=1", "has no option 'lvl'"),
        ("nobody.level=1", "unknown compiler 'nobody'; registered: "),
    ],
)
def test_a_wrong_option_as_text(text, reason):
    byoc.register_target_hooks(VENDOR, options={"level": 2, "fast": False})
    with pytest.raises(InputError, match=reason):
        parse_option(text)


def test_options_on_the_command_line(tmp_path):
    from onnx import TensorProto, helper, save

    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [8]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Exp", ["x"], ["y"])], "exp", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    save(model, str(tmp_path / "exp.onnx"))
    command = ["compile", str(tmp_path / "exp.onnx"), "-o", str(tmp_path / "m.so"), "--compiler", "ccompiler"]
    result = CliRunner().invoke(cli, [*command, "--option", "ccompiler.optimize=0"])
    assert result.exit_code == 0, result.output
    assert_right(byoc.load(tmp_path / "m.so")(X), np.exp(X), 1e-6, elementwise=True)
    for option, status in (("ccompiler.optimise=0", 2), ("ccompiler.optimize=high", 2), ("ccompiler", 2)):
        with pytest.raises(SystemExit) as left:
            main([*command, "--option", option])
        assert left.value.code == status
