"""TVM knows a namespace's codegen; it is an error if another package has registered one of that name."""

import pytest
import tvm
import tvm_ffi
from tvm.script import ir as I
from tvm.script import relax as R

import tvm_byoc_dnnl as byoc
from tests.harness import no_code


@I.ir_module
class Relu:
    @R.function
    def main(x: R.Tensor((4,), "float32")):
        with R.dataflow():
            y = R.nn.relu(x)
            R.output(y)
        return y


@pytest.fixture
def claimed():
    """A namespace whose name another library has taken, as a TVM built with its own oneDNN support takes ``dnnl``."""
    tvm_ffi.register_global_func("relax.ext.claimed", lambda *_: [], override=True)
    byoc.register_annotate_compiler("claimed", ["relax.nn.relu"])
    byoc.register_codegen("claimed", no_code)
    yield
    byoc.unregister_compiler("claimed")
    tvm_ffi.registry.remove_global_func("relax.ext.claimed")


def test_a_name_that_another_library_owns_is_one_clear_error(claimed):
    with pytest.raises(
        byoc.NativeLibraryError, match=r"relax\.ext\.claimed is registered already.*USE_CLAIMED=ON.*OFF"
    ):
        byoc.partition(Relu, "claimed")


def test_a_codegen_is_known_to_tvm_after_partitioning():
    byoc.register_annotate_compiler("unclaimed", ["relax.nn.relu"])
    byoc.register_codegen("unclaimed", no_code)
    try:
        byoc.partition(Relu, "unclaimed")
        assert tvm.get_global_func("relax.ext.unclaimed", allow_missing=True) is not None
    finally:
        byoc.unregister_compiler("unclaimed")
