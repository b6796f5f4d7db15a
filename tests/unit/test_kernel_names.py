"""Which calls each kernel of TVM's runs."""

import numpy as np
from tvm.script import ir as I
from tvm.script import relax as R

import tvm_byoc_dnnl as byoc


def names(module, *inputs):
    report = byoc.profile(byoc.compile(module), [np.asarray(i, "float32") for i in inputs], repeat=1, warmup=0)
    return [step.calls for step in report.steps if step.region == "tvm"]


def test_kernels_that_are_fused_in_another_order_and_used_again():
    @I.ir_module
    class Crossed:
        @R.function
        def main(x: R.Tensor((4, 8), "float32"), y: R.Tensor((4, 8), "float32")):
            with R.dataflow():
                tan_x = R.tan(x)
                tan_y = R.tan(y)
                cum_y = R.cumsum(tan_y, axis=1)
                cum_x = R.cumsum(tan_x, axis=1)
                sin_x = R.sin(cum_x)
                sin_y = R.sin(cum_y)
                flat = R.reshape(sin_x, (8, 4))
                gv = (flat, sin_y)
                R.output(gv)
            return gv

    found = names(Crossed, np.ones((4, 8)), np.ones((4, 8)))
    assert sorted(found) == [["cum_x"], ["cum_y"], ["sin_x", "flat"], ["sin_y"], ["tan_x"], ["tan_y"]]
    assert found.index(["tan_x"]) < found.index(["cum_x"]) < found.index(["sin_x", "flat"])


def test_several_kernels_of_one_call_and_an_emitted_name_like_its_own():
    @I.ir_module
    class Half:
        @R.function
        def main(x: R.Tensor((4, 8), "float16"), w: R.Tensor((8, 8), "float16")):
            with R.dataflow():
                lv1 = R.tan(x)
                lv = R.matmul(lv1, w)
                lv2 = R.cumsum(lv, axis=1)
                R.output(lv2)
            return lv2

    report = byoc.profile(byoc.compile(Half, "ccompiler"), repeat=1, warmup=0)
    steps = {step.kind: step.calls for step in report.steps}
    assert {name for calls in steps.values() for name in calls} == {"lv", "lv1", "lv2"}
    assert steps["cumsum"] == ["lv2"] and all(steps.values())


def test_functions_and_branches():
    @I.ir_module
    class Branches:
        @R.function(private=True)
        def helper(x: R.Tensor((4, 8), "float32")) -> R.Tensor((4, 8), "float32"):
            with R.dataflow():
                inner = R.tan(x)
                R.output(inner)
            return inner

        @R.function
        def main(c: R.Tensor((), "bool"), x: R.Tensor((4, 8), "float32")) -> R.Tensor((4, 8), "float32"):
            cls = Branches
            with R.dataflow():
                first = R.tan(x)
                R.output(first)
            second = cls.helper(first)
            if c:
                with R.dataflow():
                    left = R.tan(second)
                    left_2 = R.asin(left)
                    R.output(left_2)
                r = left_2
            else:
                with R.dataflow():
                    right = R.acos(second)
                    R.output(right)
                r = right
            return r

    ex = byoc.compile(Branches)

    def steps(condition):
        report = byoc.profile(ex, [np.bool_(condition), np.ones((4, 8), "float32")], repeat=1, warmup=0)
        return [(s.kind, s.calls) for s in report.steps if s.region == "tvm"]

    assert steps(True) == [("tan", ["first"]), ("tan", ["inner"]), ("tan", ["left"]), ("asin", ["left_2"])]
    assert steps(False) == [("tan", []), ("tan", []), ("acos", ["right"])]  # which of three tan ran is not known
