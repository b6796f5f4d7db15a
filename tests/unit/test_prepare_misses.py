"""A near miss of a form that preparing knows is reported with its reason; nothing else is."""

import numpy as np
import pytest
from tvm import relax

import tvm_byoc_dnnl as byoc
from tvm_byoc_dnnl.core.compilation import read_facts
from tvm_byoc_dnnl.prepare import Prepare

op, nn = relax.op, relax.op.nn
SHAPE = (2, 8, 6, 6)


def number(value):
    return relax.const(value, "float32")


def weights(*shape):
    return relax.const(np.random.default_rng(0).standard_normal(shape).astype("float32"))


def gelu(x, inside=0.70710678, half=0.5):
    return op.multiply(op.multiply(x, number(half)), op.add(op.erf(op.multiply(x, number(inside))), number(1)))


def layer_norm(x, mean=(-1,), variance=(-1,)):
    centred = op.subtract(x, op.mean(x, list(mean), True))
    spread = op.mean(op.multiply(centred, centred), list(variance), True)
    return op.divide(centred, op.sqrt(op.add(spread, number(1e-5))))


def softmax(x, largest=1, total=1):
    e = op.exp(op.subtract(x, op.max(x, largest, True)))
    return op.divide(e, op.sum(e, total, True))


def padded(x, value=0.0, width=(0, 0, 0, 0, 1, 1, 1, 1), mode="constant"):
    return nn.conv2d(nn.pad(x, list(width), pad_mode=mode, pad_value=value), weights(4, x_channels(width), 3, 3))


def x_channels(width):
    return SHAPE[1] + width[2] + width[3]


def batch_norm(x, kernel=None, axis=1, statistics=None):
    kernel = weights(8, 8, 3, 3) if kernel is None else kernel
    mean, variance = statistics or (relax.const(np.zeros(8, "float32")), relax.const(np.ones(8, "float32")))
    y = nn.conv2d(x, kernel, padding=1)
    return nn.batch_norm(y, weights(8), weights(8), mean, variance, axis, training=False)[0]


def noted(make, *parameters):
    """(form, reason) of what is noted about a function of x and more parameters."""
    bb = relax.BlockBuilder()
    params = [relax.Var("x", relax.TensorType(SHAPE, "float32")), *parameters]
    with bb.function("main", params):
        with bb.dataflow():
            result = make(*params)
            fields = [bb.emit_output(bb.normalize(r)) for r in (result if isinstance(result, tuple) else (result,))]
        bb.emit_func_output(fields[0] if len(fields) == 1 else relax.Tuple(fields))
    return [(fact.op.removeprefix("prepare."), fact.reason) for fact in read_facts(Prepare()(bb.get()))]


def with_erf(x):
    erf = op.erf(op.multiply(x, number(0.70710678)))
    bb = relax.BlockBuilder.current()
    erf = bb.emit(erf)
    return op.multiply(op.multiply(x, number(0.5)), op.add(erf, number(1))), op.tanh(erf)


MISSES = {
    "another factor inside": (lambda x: gelu(x, inside=0.7), "gelu", "a factor is 0.7 instead of 0.707107"),
    "another factor outside": (lambda x: gelu(x, half=0.4), "gelu", "a factor is 0.4 instead of 0.5"),
    "a part is read elsewhere": (with_erf, "gelu", "a part of it is read elsewhere, too"),
    "the quick gelu": (
        lambda x: op.multiply(x, op.sigmoid(op.multiply(x, number(1.702)))),
        "silu",
        "a factor is 1.702 instead of 1",
    ),
    "statistics over other axes": (
        lambda x: layer_norm(x, variance=(-2, -1)),
        "layer_norm",
        "the mean is over axes [3], the variance over [2, 3]",
    ),
    "axes that are not the last": (
        lambda x: layer_norm(x, (1,), (1,)),
        "layer_norm",
        "it is over axes [1] of [2, 8, 6, 6]: not the last ones, or of too many or unknown elements",
    ),
    "a maximum over another axis": (
        lambda x: softmax(x, largest=2),
        "softmax",
        "the sum is over axis 1, the maximum over [2]",
    ),
    "padding with ones": (lambda x: padded(x, 1.0), "padding", "it pads with the number 1, not with zeros"),
    "padding by reflection": (
        lambda x: padded(x, mode="reflect"),
        "padding",
        "it pads with reflect, not with zeros",
    ),
    "padding of channels": (
        lambda x: padded(x, width=(0, 0, 1, 0, 1, 1, 1, 1)),
        "padding",
        "it pads batch or channels: [0, 0, 1, 0, 1, 1, 1, 1] in NCHW",
    ),
}


@pytest.mark.parametrize(("make", "form", "reason"), MISSES.values(), ids=MISSES)
def test_a_miss_says_why(make, form, reason):
    assert (form, reason) in noted(make)


def test_a_batch_norm_that_is_not_folded_says_why():
    form = "batch_norm folded into weights"
    kernel = relax.Var("w", relax.TensorType((8, 8, 3, 3), "float32"))
    assert noted(batch_norm, kernel) == [(form, "the weights before it are not constant")]
    moving = [relax.Var(n, relax.TensorType((8,), "float32")) for n in ("mean", "variance")]
    assert noted(lambda x, *s: batch_norm(x, statistics=s), *moving) == [(form, "its parameters are not constant")]


@pytest.mark.parametrize(
    "make",
    [gelu, layer_norm, softmax, padded, batch_norm, lambda x: op.multiply(x, op.sigmoid(x))],
    ids=["gelu", "layer_norm", "softmax", "padding", "batch_norm", "silu"],
)
def test_what_is_recognised_is_no_miss(make):
    assert noted(make) == []


@pytest.mark.parametrize(
    "make",
    [op.sigmoid, op.erf, lambda x: op.divide(x, op.sqrt(op.abs(x))), lambda x: op.divide(x, op.sum(x, 1, True))],
    ids=["sigmoid", "erf", "a root", "shares"],
)
def test_what_is_nothing_like_it_is_no_miss(make):
    assert noted(make) == []


def test_explain_tells():
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(SHAPE, "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            out = bb.emit_output(gelu(x, inside=0.7))
        bb.emit_func_output(out)
    (erf,) = (call for call in byoc.explain(bb.get()).calls if call.op == "relax.erf")
    miss = erf.near_misses[0]
    assert (miss.pattern, miss.reason) == ("prepare.gelu", "a factor is 0.7 instead of 0.707107")
