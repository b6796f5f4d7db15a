"""Wrong arguments of the public functions: one typed error each, which says what was meant."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import tvm_byoc_dnnl as byoc
from tvm_byoc_dnnl.core.errors import ArgumentTypeError, ByocError, InputError, MissingFileError, did_you_mean, one_of

MODEL = onnx.parser.parse_model(
    '<ir_version: 8, opset_import: ["": 17]> g (float[2, 3] x) => (float[2, 3] y) { r = Relu(x) y = Sin(r) }'
)


TYPOS = {
    "compiler": ({"compiler": "dnll"}, "'dnnl'"),
    "one of several compilers": ({"compiler": ["dnnl", "ccompilr"]}, "'ccompiler'"),
    "precision": ({"precision": "bfloat"}, "'bfloat16'"),
    "weights": ({"weights": "int9"}, "'int8'"),
    "int8": ({"int8": "exat"}, "'exact'"),
    "output": ({"output": "modul"}, "'module'"),
    "target": ({"target": "llmv"}, "'llvm'"),
    "options": ({"options": {"dnll": {}}}, "'dnnl'"),
    "placement": ({"placement": {"relax.nn.rleu": "dnnl"}}, "'relax.nn.relu'"),
    "a compiler in placement": ({"placement": {"relax.nn.relu": "dnll"}}, "'dnnl'"),
    "exclude": ({"policy": byoc.RegionPolicy(exclude=["relax.nn.rleu"])}, "'relax.nn.relu'"),
    "force": ({"policy": byoc.RegionPolicy(force=["relax.sinn"])}, "'relax.sin'"),
}


@pytest.mark.parametrize("name", TYPOS)
def test_a_typo(name: str) -> None:
    arguments, meant = TYPOS[name]
    with pytest.raises(InputError, match=f"did you mean .*{meant}"):
        byoc.compile(MODEL, **arguments)


def test_a_target_without_a_cpu() -> None:
    with pytest.raises(InputError, match="target is 'opencl'; expected a CPU's"):
        byoc.compile(MODEL, target="opencl")


@pytest.mark.parametrize("name", ["relax.nn.softmax", "relax.nn.*", "dnnl.relu", "lv"])
def test_a_policy_may_name_what_other_models_have(name: str) -> None:
    byoc.partition(MODEL, policy=byoc.RegionPolicy(exclude=[name], on_top=True))


TYPES = {
    "compiler": {"compiler": 3},
    "compilers": {"compiler": ["dnnl", 3]},
    "shapes": {"shapes": [(2, 3)]},
    "policy": {"policy": "relax.nn.relu"},
    "placement": {"placement": ["relax.nn.relu"]},
    "options": {"options": ["dnnl"]},
}


@pytest.mark.parametrize("name", TYPES)
def test_a_wrong_type(name: str) -> None:
    for function in (byoc.compile, byoc.explain):
        with pytest.raises(ArgumentTypeError, match="expected"):
            function(MODEL, **TYPES[name])


@pytest.mark.parametrize(
    "function", [byoc.compile, byoc.partition, byoc.explain, byoc.verify, byoc.profile, byoc.to_relax]
)
@pytest.mark.parametrize("model", [3, None, b"hello", [MODEL]])
def test_what_is_no_model(function, model) -> None:
    with pytest.raises(InputError, match=r"cannot import a|cannot read these 5 bytes"):
        function(model)


def test_names_of_a_policy_are_a_sequence() -> None:
    with pytest.raises(ArgumentTypeError, match="a sequence of names"):
        byoc.RegionPolicy(exclude="relax.nn.relu")


def test_a_file_that_is_not_there(tmp_path) -> None:
    for function, name in ((byoc.compile, "m.onnx"), (byoc.explain, "m.onnx"), (byoc.load, "m.so")):
        with pytest.raises(MissingFileError) as raised:
            function(tmp_path / name)
        assert isinstance(raised.value, (FileNotFoundError, ByocError))
    with pytest.raises(ArgumentTypeError):
        byoc.load(3)


def test_a_path_wherever_a_model_is(tmp_path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(MODEL, path)
    for model in (path, str(path), MODEL):
        assert "main" in {v.name_hint for v in byoc.partition(model).functions}


@pytest.mark.native
def test_what_is_compiled_is_no_model(tmp_path) -> None:
    ex = byoc.compile(MODEL)
    ex.export_library(tmp_path / "m.so")
    for model in (ex, byoc.Runner(ex), tmp_path / "m.so"):
        with pytest.raises(InputError, match="compiled"):
            byoc.compile(model)
        assert byoc.profile(model, [np.ones((2, 3), "float32")], repeat=1, warmup=0).repeat == 1


def test_nothing_near() -> None:
    assert did_you_mean("zzz", ["relu"]) == ""
    with pytest.raises(InputError, match=r"expected one of 'a', None$"):
        one_of("x", ["a"], ["a", None])
