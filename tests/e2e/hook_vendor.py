"""What the tests of target hooks share: a namespace that takes additions, and hooks that make other things of them."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import tvm
from tvm import relax, te
from tvm.script import ir as I
from tvm.script import relax as R

import tvm_byoc_dnnl as byoc
from tvm_byoc_dnnl.pipeline.regions import build_regions
from tvm_byoc_dnnl.vendors.hooks import for_each_region

VENDOR = "example_target_hook"
RNG = np.random.default_rng(0)
X, Y = (RNG.standard_normal(8).astype("float32") for _ in range(2))


@I.ir_module
class Add:
    @R.function
    def main(x: R.Tensor((8,), "float32"), y: R.Tensor((8,), "float32")):
        with R.dataflow():
            z = R.add(x, y)
            R.output(z)
        return z


@I.ir_module
class AddTwice:
    @R.function
    def main(x: R.Tensor((8,), "float32"), y: R.Tensor((8,), "float32")):
        with R.dataflow():
            z = R.add(x, y)
            r = R.multiply(z, R.const(2.0, "float32"))
            R.output(r)
        return r


@pytest.fixture(autouse=True)
def vendor():
    byoc.register_annotate_compiler(VENDOR, ["relax.add"])
    yield
    byoc.unregister_compiler(VENDOR)


def run(executable, *args):
    result = relax.VirtualMachine(executable, tvm.cpu())["main"](*map(tvm.runtime.tensor, args))
    return [t.numpy() for t in ([result] if isinstance(result, tvm.runtime.Tensor) else result)]


def build(mod, compiler=VENDOR, target="llvm", **options):
    return tvm.compile(byoc.partition(mod, compiler), target, relax_pipeline=byoc.byoc_pipeline(**options))


def lowered(mod):
    """The module behind the hooks."""
    with tvm.target.Target("llvm"):
        return build_regions(mod)[1]


def elementwise(*functions):
    """A hook that makes a kernel of several results over vectors of one length, whatever the region computes."""

    def kernel(region, _builder):
        size = region.params[0].ty.shape.values[0]
        ins = [te.placeholder((size,), "float32", p.name) for p in region.params]
        outs = [te.compute((size,), lambda i: function(*(t[i] for t in ins)), "out") for function in functions]  # noqa: B023
        return te.create_prim_func([*ins, *outs], "int64")

    return for_each_region(kernel)


SUBTRACT = elementwise(lambda x, y: x - y)


#: C source of a function that multiplies two vectors
MULTIPLY = """
#include <tvm/ffi/c_api.h>
static float* data(const TVMFFIAny* a) {
  DLTensor* t = a->type_index == kTVMFFIDLTensorPtr ? (DLTensor*)a->v_ptr : TVMFFITensorGetDLTensorPtr(a->v_obj);
  return (float*)((char*)t->data + t->byte_offset);
}
#ifdef __cplusplus
extern "C"
#endif
TVM_FFI_DLL_EXPORT int __tvm_ffi_%s(void* self, const TVMFFIAny* a, int32_t n, TVMFFIAny* r) {
  for (int i = 0; i < 8; ++i) data(a + 2)[i] = data(a)[i] * data(a + 1)[i];
  return 0;
}
"""


def in_a_fresh_process(library, *args):
    """The first result of a library in a process that knows nothing but TVM."""
    code = (
        "import sys, json, tvm, numpy as np\n"
        "vm = tvm.relax.VirtualMachine(tvm.runtime.load_module(sys.argv[1]), tvm.cpu())\n"
        "args = [tvm.runtime.tensor(np.array(a, 'float32')) for a in json.loads(sys.argv[2])]\n"
        "r = vm['main'](*args)\n"
        "assert not any(m.startswith('tvm_byoc_dnnl') for m in sys.modules), 'our package was needed'\n"
        "print(json.dumps((r if hasattr(r, 'numpy') else r[0]).numpy().tolist()))\n"
    )
    text = json.dumps([a.tolist() for a in args])
    env = {"PATH": "/usr/bin:/bin", "TVM_DEVICE_BACKEND_AUTOLOAD": "0"}
    done = subprocess.run([sys.executable, "-c", code, str(library), text], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
