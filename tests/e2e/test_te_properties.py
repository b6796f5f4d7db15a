"""The TE graph of a call gives TVM's own result whatever its dtype, shape, axes, constants and symbols are."""

from __future__ import annotations

import random

import pytest
import tvm
from tvm import relax

from tvm_byoc_dnnl.core.errors import UnsupportedError
from tvm_byoc_dnnl.ir.tvm_compat import dtype_of
from tvm_byoc_dnnl.runtime.comparison import differences
from tvm_byoc_dnnl.te import translate_to_te
from tvm_byoc_dnnl.testing.conformance.calls import call_cases
from tvm_byoc_dnnl.testing.conformance.judge import by_tvm, outcomes, run
from tvm_byoc_dnnl.testing.op_calls import OPS
from tvm_byoc_dnnl.vendors.hook_lowering import with_body

#: variations of each op, beside the one call that test_te_ops.py looks at
_COUNT = 2
_PARTS = 6
#: the shape of their result depends on the values of a constant, which other variations would have to follow
_BY_VALUE = {"tensor_to_shape"}
#: TVM, which says what is right, has no kernel (a function of topi that does not exist), or one that contradicts the
#: type in Relax (more numbers than there are)
_WITHOUT_TVM = {"nn.pixel_shuffle", "topk"}


def variations(part: int) -> list:
    """Some cases of every sixth op, drawn by a fixed seed."""
    draw = random.Random(part)
    cases = [call_cases(f"relax.{op}")[1:] for op in sorted(OPS.keys() - _BY_VALUE - _WITHOUT_TVM)[part::_PARTS]]
    return [case for some in cases for case in draw.sample(some, min(_COUNT, len(some)))]


def translation_error(case) -> str:
    try:
        translate_to_te(case.main)
    except UnsupportedError as error:
        return str(error)
    return ""


def inferred_dtypes(case) -> list[str]:
    ty = case.main.ret_ty
    return [dtype_of(t) for t in (ty.fields if isinstance(ty, relax.TupleType) else [ty])]


def translated(mod: tvm.IRModule):
    """What the TE graphs of all functions compute."""
    builder = relax.BlockBuilder(mod)
    for gv, func in mod.functions.items():
        builder.update_func(gv, with_body(func, translate_to_te(func).call(builder, func.params)))
    return by_tvm(builder.get())


@pytest.mark.slow
@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.sweep) for part in range(1, _PARTS))])
def test_translation_keeps_the_meaning(part):
    cases = variations(part)
    refused = {case: why for case in cases if (why := translation_error(case))}
    taken = [case for case in cases if case not in refused]
    assert len(taken) > 4 * len(refused)
    right = dict(zip(cases, outcomes(cases, [c.reference for c in cases], by_tvm), strict=True))
    mine = dict(zip(taken, outcomes(taken, [c.main for c in taken], translated), strict=True))
    wrong, compared = [], 0
    for case in cases:
        want = run(right[case], case.inputs)
        if isinstance(want, Exception):
            continue  # nobody says what is right
        if case in refused and [str(w.dtype) for w in want] != inferred_dtypes(case):
            continue  # TVM's own lowering makes another dtype than Relax infers, and so does its result
        got = run(mine[case], case.inputs) if case in mine else UnsupportedError(refused[case])
        found = str(got) if isinstance(got, Exception) else differences(got, want)
        compared += not isinstance(got, Exception)
        wrong += [f"{case.name}: {found}"] if found else []
    assert not wrong, "\n".join(wrong)
    assert compared > 0.8 * len(cases)
