"""What TVM's PyTorch importer refuses arrives as our error; needs no torch."""

import sys
import types

import pytest
import tvm

from tvm_byoc_dnnl.errors import UnsupportedError
from tvm_byoc_dnnl.frontend.torch_import import import_torch


@pytest.mark.parametrize("error", [AssertionError, NotImplementedError, ValueError, tvm.error.InternalError])
def test_a_refusal_is_one_clear_error(error, monkeypatch):
    def refuse(*_args, **_kwargs):
        raise error("no conversion for aten.foo")

    importer = types.SimpleNamespace(from_exported_program=refuse)
    monkeypatch.setitem(sys.modules, "tvm.relax.frontend.torch", importer)
    with pytest.raises(UnsupportedError, match=r"refuses this program: .*aten\.foo"):
        import_torch(None)
