"""The nine light networks of the onnx package: offloaded whole, ONNX Runtime's numbers, exported and reloaded."""

import importlib.metadata
import subprocess
import sys

import numpy as np
import pytest
import tvm

import tvm_byoc_dnnl as byoc
from tvm_byoc_dnnl.ir.relax_utils import codegen_of, is_host_function, ops_of
from tvm_byoc_dnnl.testing.models import LIGHT_MODELS, light_model, ort_run, random_inputs

# float32 with another order of summation: a dot product of K terms is off by about sqrt(K)·2^-24 relative to the
# size of the terms. The longest here (vgg19: 25,088) gives 1e-5 per layer; errors of 19 layers add up, ReLU damps.
TOLERANCE = 5e-5

COMPUTE = {"relax.nn.conv2d", "relax.matmul"}


def scaled_error(got, want):
    return float(np.abs(got - want).max() / np.abs(want).max())


#: the largest of their kind: 240 MB and 550 MB of weights
LARGE = ("zfnet512", "vgg19")
NETWORKS = [pytest.param(name, marks=pytest.mark.sweep) if name in LARGE else name for name in LIGHT_MODELS]


@pytest.fixture(scope="module", params=NETWORKS)
def network(request):
    model = light_model(request.param)
    mod = byoc.partition(byoc.to_relax(model))
    inputs = random_inputs(model)
    return request.param, mod, inputs, ort_run(model, inputs)[0]


def test_every_convolution_and_gemm_is_offloaded(network):
    name, mod, _, _ = network
    host = {op for f in mod.functions.values() if is_host_function(f) for op in ops_of(f)}
    assert not host & COMPUTE
    regions = [gv.name_hint for gv, f in mod.functions.items() if codegen_of(f)]
    assert regions == ["dnnl_0"], f"{name} should be one region"


def test_numbers_are_onnx_runtimes_before_and_after_export(network, tmp_path):
    name, mod, inputs, want = network
    assert np.ptp(want) > 0, "a constant output would prove nothing"
    ex = tvm.compile(mod, "llvm", relax_pipeline="byoc")
    got = byoc.Runner(ex)(inputs)
    assert scaled_error(got, want) < TOLERANCE
    ex.export_library(str(tmp_path / f"{name}.so"))
    np.testing.assert_array_equal(byoc.load(tmp_path / f"{name}.so")(inputs), got)


_FRESH = """
import sys
import numpy as np
import tvm
from tvm import relax
vm = relax.VirtualMachine(tvm.runtime.load_module(sys.argv[1]), tvm.cpu())
np.save(sys.argv[3], vm["main"](tvm.runtime.tensor(np.load(sys.argv[2]))).numpy())
"""


def test_a_fresh_process_needs_only_import_tvm(tmp_path):
    try:
        importlib.metadata.version("tvm-byoc-dnnl")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the package runs from its source tree; `import tvm` finds it only when it is installed")
    model = light_model("squeezenet")
    inputs = random_inputs(model)
    byoc.compile(model).export_library(str(tmp_path / "m.so"))
    np.save(tmp_path / "x.npy", next(iter(inputs.values())))
    paths = [str(tmp_path / f) for f in ("m.so", "x.npy", "y.npy")]
    subprocess.run([sys.executable, "-c", _FRESH, *paths], check=True)
    assert scaled_error(np.load(tmp_path / "y.npy"), ort_run(model, inputs)[0]) < TOLERANCE
