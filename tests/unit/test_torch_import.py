"""A refusal of TVM's PyTorch importer becomes our error, and calls that it imports wrong are corrected."""

import sys
import types

import pytest
import tvm
from tvm import relax

from tests.harness import assert_right
from tvm_byoc_dnnl.core.errors import UnsupportedError
from tvm_byoc_dnnl.frontends.onnx.emit import Emit
from tvm_byoc_dnnl.frontends.onnx.value import Value
from tvm_byoc_dnnl.frontends.torch.importer import import_torch
from tvm_byoc_dnnl.frontends.torch.operators import cat
from tvm_byoc_dnnl.ir.relax_utils import shape_dims


@pytest.mark.parametrize("error", [AssertionError, NotImplementedError, ValueError, tvm.error.InternalError])
def test_a_refusal_is_one_clear_error(error, monkeypatch):
    def refuse(*_args, **_kwargs):
        raise error("no conversion for aten.foo")

    importer = types.SimpleNamespace(from_exported_program=refuse)
    monkeypatch.setitem(sys.modules, "tvm.relax.frontend.torch", importer)
    monkeypatch.setattr("tvm_byoc_dnnl.frontends.torch.importer.decompositions", lambda _program: {})
    monkeypatch.setattr("tvm_byoc_dnnl.frontends.torch.importer.fused", dict)
    monkeypatch.setattr("tvm_byoc_dnnl.frontends.torch.importer._converters", lambda _program: {})
    monkeypatch.setattr("tvm_byoc_dnnl.frontends.torch.importer._promote", lambda _program: None)
    program = types.SimpleNamespace(
        graph=types.SimpleNamespace(nodes=[]),
        graph_signature=types.SimpleNamespace(buffers_to_mutate={}, user_inputs_to_mutate={}),
        run_decompositions=lambda _table: program,
    )
    with pytest.raises(UnsupportedError, match=r"refuses this program: .*aten\.foo"):
        import_torch(program)


@pytest.mark.parametrize(
    ("shapes", "axis", "want"),
    [
        ([(0,), (2, 3, 4)], -2, (2, 3, 4)),
        ([(0,), (2, 3, 4), (0,), (2, 5, 4)], 1, (2, 8, 4)),
        ([(2, 3), (4, 3)], 0, (6, 3)),
        ([(0,), (0,)], 0, (0,)),
        ([(0,), (5,)], 0, (5,)),
        ([(2, 0), (2, 3)], 1, (2, 3)),
    ],
    ids=["empty cache", "between", "plain", "all empty", "rank 1", "empty of its own rank"],
)
def test_cat_leaves_out_what_torch_leaves_out(shapes, axis, want):
    builder = relax.BlockBuilder()
    params = [relax.Var(f"x{i}", relax.TensorType(s, "float32")) for i, s in enumerate(shapes)]
    with builder.function("main", params), Emit(builder).emitting() as e:
        builder.emit_func_output(e.tensor(cat(e, None, [Value(p) for p in params], axis)))
    assert shape_dims(builder.get()["main"].ret_ty) == list(want)


def test_cat_of_a_real_program():
    torch = pytest.importorskip("torch", reason="needs torch, which `make test-zoo` installs")

    class Cache(torch.nn.Module):
        def forward(self, x):
            return torch.cat([torch.tensor([]), x], dim=-2) + 1

    x = torch.randn(2, 3, 4)
    mod = import_torch(torch.export.export(Cache(), (x,)))
    got = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())["main"](tvm.runtime.tensor(x.numpy()))
    assert_right(got.numpy(), x.numpy() + 1, 0)
