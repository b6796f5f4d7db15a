"""Links of quantised networks on integers, against exact integers."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from tests.harness import Case, const, data
from tests.patterns.dnnl.quantized_reference import (
    RESULT,
    SCALE,
    WEIGHTS,
    convolved,
    number,
    spread,
    stored,
    whole,
    windows,
    within_a_step,
)

op, nn = relax.op, relax.op.nn


def link(
    shape, weights, source="uint8", zero=7, result="uint8", per_channel=True, worst=False, act="relu", most=255, **attrs
):
    """dequantize → conv2d → + bias → relu → quantize."""
    stride, pad, groups = (attrs.get(k, d) for k, d in (("stride", 1), ("pad", 0), ("groups", 1)))
    channels = weights[0]
    scales = np.random.default_rng(1).uniform(0.001, WEIGHTS, channels) if per_channel else np.array(WEIGHTS)
    scales = scales.astype("float32").astype("float64")
    final = RESULT * (60 if worst else 1)

    def function(x, xs, xz, w, ws, wz, b, ys, yz):
        y = nn.conv2d(
            op.dequantize(x, xs, xz, axis=1),
            op.dequantize(w, ws, wz, axis=0),
            strides=stride,
            padding=pad,
            groups=groups,
        )
        y = op.add(y, b)
        y = nn.relu(y) if act == "relu" else op.clip(y, 0, 6) if act == "clip" else y
        return op.quantize(y, ys, yz, axis=1, out_dtype=result)

    def reference(x, xs, xz, w, ws, wz, b, ys, yz):
        y = convolved(x - xz, w, stride, pad, groups) * (xs * spread(ws, 4, 1)) + b
        y = np.maximum(y, 0) if act else y
        return stored(np.minimum(y, 6) if act == "clip" else y, ys, yz, result)

    operands = (
        whole(*shape, dtype=source, make=data, worst=worst),
        number(SCALE),
        number(zero, source),
        whole(*weights, worst=worst, seed=3, most=most),
        number(scales),
        number(np.zeros(scales.shape), "int8"),
        const(1, channels, 1, 1),
        number(final),
        number(3, result),
    )
    return Case(function, operands, reference)


CONVOLUTIONS = {
    "pad": ((2, 17, 9, 7), (13, 17, 3, 3), {"pad": 1}),
    "worst": ((1, 33, 7, 7), (19, 33, 3, 3), {"pad": 1, "worst": True}),
    "worst_int8": ((1, 33, 7, 7), (19, 33, 3, 3), {"pad": 1, "worst": True, "source": "int8", "zero": -4}),
    "pointwise": ((2, 64, 5, 5), (32, 64, 1, 1), {"per_channel": False, "act": "clip"}),
    "int8": ((1, 32, 9, 9), (16, 32, 3, 3), {"stride": 2, "source": "int8", "zero": -9, "result": "int8", "act": None}),
    "symmetric": ((1, 3, 11, 11), (8, 3, 7, 7), {"stride": 2, "pad": 3, "zero": 0}),
    "grouped": ((1, 12, 7, 7), (24, 4, 3, 3), {"pad": 1, "groups": 3}),
    "depthwise": ((1, 24, 8, 8), (24, 1, 3, 3), {"pad": 1, "groups": 24}),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolution_is_one_primitive(name):
    shape, weights, options = CONVOLUTIONS[name]
    case = link(shape, weights, **options)
    act = {"relu": ["relu"], "clip": ["clip"], None: []}[options.get("act", "relu")]
    case.offloads().becomes(("convolution", [*act, "round"]))
    within_a_step(case)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("rank", [2, 3])
def test_a_product_is_one_primitive(rank, transposed):
    shape = (5, 67) if rank == 2 else (2, 3, 67)
    scales = np.random.default_rng(1).uniform(0.001, WEIGHTS, 19).astype("float32")

    def function(x, w, ws, wz, b, s, z, ys):
        weights = op.dequantize(w, ws, wz, axis=0 if transposed else 1)
        weights = op.permute_dims(weights) if transposed else weights
        return op.quantize(op.add(op.matmul(op.dequantize(x, s, z), weights), b), ys, z, out_dtype="uint8")

    def reference(x, w, ws, wz, b, s, z, ys):
        return stored((x - z) @ (w.T if transposed else w) * ws * s + b, ys, z, "uint8")

    operands = (
        whole(*shape, dtype="uint8", make=data),
        whole(*((19, 67) if transposed else (67, 19))),
        number(scales),
        number(np.zeros(19), "int8"),
        const(19),
        number(SCALE),
        number(130, "uint8"),
        number(RESULT),
    )
    within_a_step(Case(function, operands, reference).offloads().becomes(("matmul", ["round"])))


def test_movements_and_pooling_stay_in_integers():
    """All of them between conversions of one scale; the last one reads real numbers."""

    def function(x, other, s, z):
        def again(y):
            return op.dequantize(op.quantize(y, s, z, out_dtype="uint8"), s, z)

        y = again(nn.max_pool2d(again(op.dequantize(x, s, z)), (2, 2), (2, 2)))
        y = again(op.concat([y, op.dequantize(other, s, z)], 1))
        y = again(nn.avg_pool2d(y, (2, 2), (1, 1)))
        y = again(op.image.resize2d(y, (6, 6), layout="NCHW", method="nearest_neighbor"))
        y = again(op.permute_dims(op.reshape(y, (1, 4, 2, 36)), (0, 2, 1, 3)))
        return op.multiply(y, y)

    def reference(x, other, s, z):
        y = np.concatenate([x.reshape(1, 6, 4, 2, 4, 2).max((3, 5)), other], 1)
        y = np.round(windows(y, (2, 2), 1, 0).mean((4, 5))).repeat(2, 2).repeat(2, 3)
        return (((y.reshape(1, 4, 2, 36).transpose(0, 2, 1, 3)) - z) * s) ** 2

    operands = (
        whole(1, 6, 8, 8, dtype="uint8", make=data),
        whole(1, 2, 4, 4, dtype="uint8", make=data),
        number(np.float32(SCALE)),
        number(100, "uint8"),
    )
    case = Case(function, operands, reference)
    case.offloads().matches()
    kinds = [kind for kind, _ in case.nodes()]
    assert kinds[:4] == ["pooling", "concat", "pooling", "resampling"], kinds
    assert "div" not in str(case.graphs()[0].to_json())


def test_a_concat_quantises_each_source():
    def function(x, other, s, s2, z):
        whole = op.concat([op.dequantize(x, s, z), nn.relu(op.dequantize(other, s2, z))], 1)
        return op.quantize(whole, s, z, out_dtype="uint8")

    def reference(x, other, s, s2, z):
        second = np.float32(np.maximum((other - z) * s2, 0))
        return np.concatenate([x, stored(second / np.float32(s), 1, z, "uint8")], 1)

    operands = (
        whole(1, 3, 4, 4, dtype="uint8", make=data),
        whole(1, 2, 4, 4, dtype="uint8", make=data, seed=1),
        number(np.float32(SCALE)),
        number(np.float32(0.03)),
        number(100, "uint8"),
    )
    case = Case(function, operands, reference).offloads()
    assert case.nodes()[-1][0] == "concat"
    within_a_step(case)


@pytest.mark.parametrize(
    ("alg", "zeros", "shape", "one_primitive"),
    [
        ("add", (100, 7), (2, 17, 5, 3), True),
        ("subtract", (100, 7), (2, 17, 5, 3), True),
        ("multiply", (0, 0), (2, 17, 5, 3), True),
        ("multiply", (0, 7), (2, 17, 5, 3), False),  # the products with the zero point would be left over
        ("add", (100, 7), (1, 17, 1, 1), True),
        ("subtract", (100, 7), (1, 1, 5, 3), True),
    ],
)
def test_arithmetic_on_two_tensors(alg, zeros, shape, one_primitive):
    def function(x, y, sx, sy, zx, zy, s, z):
        both = op.dequantize(x, sx, zx), op.dequantize(y, sy, zy)
        return op.quantize(nn.relu(getattr(op, alg)(*both)), s, z, out_dtype="uint8")

    def reference(x, y, sx, sy, zx, zy, s, z):
        both = getattr(np, alg)((x - zx) * sx, (y - zy) * sy)
        return stored(np.maximum(both, 0), s, z, "uint8")

    operands = (
        whole(2, 17, 5, 3, dtype="uint8", make=data),
        whole(*shape, dtype="int8", make=data),
        *(number(v) for v in (0.02, 0.013)),
        *(number(z, d) for z, d in zip(zeros, ("uint8", "int8"), strict=True)),
        number(0.017),
        number(9, "uint8"),
    )
    case = Case(function, operands, reference).offloads()
    assert (len(case.nodes()) == 1) == one_primitive, case.nodes()
    within_a_step(case)


OTHER = relax.const(0.173, "float32")
#: the steps behind the first scale of integers that another one takes
OTHER_SCALE = ["round", "clip", "linear"]


def behind_a_product(after):
    """A quantised convolution, and a step on its integers."""
    first = link((1, 17, 6, 5), (17, 17, 3, 3), pad=1, act=None)

    def function(x, xs, xz, w, ws, wz, b, ys, yz):
        y = first.function(x, xs, xz, w, ws, wz, b, ys, yz)
        real, other = op.dequantize(y, ys, yz), op.dequantize(x, xs, xz)
        if after == "scale":
            return op.quantize(real, OTHER, xz, out_dtype="uint8")
        total = op.clip(op.add(other, real), 0, 6) if after == "clip" else nn.relu(op.add(real, other))
        total = op.quantize(total, ys, yz, out_dtype="uint8")
        if after == "sum and scale":
            total = op.quantize(op.dequantize(total, ys, yz), OTHER, xz, out_dtype="uint8")
        return (total, y) if after == "readers" else total

    def reference(x, xs, xz, w, ws, wz, b, ys, yz):
        y = first.reference(x, xs, xz, w, ws, wz, b, ys, yz)
        real, other = (y - yz) * ys, (x - xz) * xs
        if after == "scale":
            return stored(real, 0.173, xz, "uint8")
        total = np.maximum(real + other, 0)
        total = stored(np.minimum(total, 6) if after == "clip" else total, ys, yz, "uint8")
        if after == "sum and scale":
            total = stored((total - yz) * ys, 0.173, xz, "uint8")
        return (total, y) if after == "readers" else total

    return Case(function, first.operands, reference)


@pytest.mark.parametrize(
    ("after", "nodes"),
    [
        ("relu", [("convolution", ["round", "clip", "linear", "add", "relu", "linear", "round", "linear"])]),
        ("clip", [("convolution", ["round", "clip", "linear", "add", "clip", "linear", "round", "linear"])]),
        ("scale", [("convolution", OTHER_SCALE)]),
        (
            "sum and scale",
            [("convolution", ["round", "clip", "linear", "add", "relu", "linear", "round", "linear", *OTHER_SCALE])],
        ),
        ("readers", [("convolution", ["round"]), ("binary", ["linear", "relu", "linear", "round", "linear"])]),
    ],
)
def test_a_step_on_the_integers_of_a_product(after, nodes):
    within_a_step(behind_a_product(after).offloads().becomes(*nodes))


def doubled(x):
    return op.concat([x, x], 1)


#: what is in front of integers whose clamp must not be lost, and its reference
IN_FRONT = {
    "input": (lambda x: x, lambda x: x),
    "relu": (nn.relu, lambda x: np.maximum(x, 0)),
    "add": (lambda x: op.add(x, x), lambda x: x + x),
    "multiply": (lambda x: op.multiply(x, x), lambda x: x * x),
    "mean": (lambda x: op.mean(x, [2], keepdims=True), lambda x: x.mean(2, keepdims=True)),
    "average pooling": (lambda x: nn.avg_pool2d(x, (2, 2)), lambda x: windows(x, (2, 2), 1, 0).mean((4, 5))),
    "linear resize": (lambda x: op.image.resize2d(x, (5, 6), layout="NCHW", method="linear"), lambda x: x),
}


@pytest.mark.parametrize("moves", [False, True])
@pytest.mark.parametrize("name", IN_FRONT)
def test_a_clamp_between_two_scales_stays(name, moves):
    """The first conversion saturates at both ends, as one whose zero point is a relu; the second one does not."""
    steps, wanted = IN_FRONT[name]

    def function(x, s, z, s2, z2):
        whole = op.quantize(steps(x), s, z, out_dtype="uint8")
        real = op.dequantize(whole, s, z)
        return op.quantize(doubled(real) if moves else real, s2, z2, out_dtype="uint8")

    def reference(x, s, z, s2, z2):
        real = (stored(wanted(x), s, z, "uint8") - z) * s
        return stored(np.concatenate([real, real], 1) if moves else real, s2, z2, "uint8")

    point = 0 if name in ("input", "relu", "mean") else 40
    numbers = (number(0.005), number(point, "uint8"), number(0.011), number(100, "uint8"))
    case = Case(function, (data(1, 3, 5, 6, low=-4, high=4), *numbers), reference).offloads()
    got = case.run()[0]
    ends = 100 - round(point * 0.005 / 0.011), 100 + round((255 - point) * 0.005 / 0.011)
    assert (got.min(), got.max()) == (ends if name not in ("relu", "multiply") else (100, ends[1]))
    within_a_step(case)


@pytest.mark.parametrize("act", [None, "relu"])
def test_halves_are_rounded_before_an_odd_zero_point_is_added(act):
    """Half of an odd sum becomes the even integer beside it, not the one that is even together with the zero point."""

    def function(x, w, unit, s, z, ys, yz):
        y = op.matmul(op.dequantize(x, s, z), op.dequantize(w, unit, z))
        return op.quantize(nn.relu(y) if act else y, ys, yz, out_dtype="uint8")

    def reference(x, w, unit, s, z, ys, yz):
        y = x @ w * s
        return stored(np.maximum(y, 0) if act else y, ys, yz, "uint8")

    operands = (
        whole(9, 16, most=3, make=data),
        whole(16, 12, most=3),
        *(number(v, d) for v, d in ((1.0, "float32"), (0.5, "float32"), (0, "int8"), (1.0, "float32"), (101, "uint8"))),
    )
    within_a_step(Case(function, operands, reference).offloads(), share=0)


@pytest.mark.parametrize("point", [101, 100])
@pytest.mark.parametrize("steps", ["sum", "sum and scale", "average pooling"])
def test_halves_of_integers_are_rounded_above_their_zero_point(steps, point):
    """All scales are powers of two, so that many values are halves in every arithmetic."""

    def function(x, y, one, two, z):
        real = op.dequantize(x, one, z)
        if steps == "average pooling":
            return op.quantize(nn.avg_pool2d(real, (2, 2)), one, z, out_dtype="uint8")
        total = op.quantize(op.add(real, op.dequantize(y, one, z)), two, z, out_dtype="uint8")
        return total if steps == "sum" else op.quantize(op.dequantize(total, two, z), one, z, out_dtype="uint8")

    def reference(x, y, one, two, z):
        if steps == "average pooling":
            return stored(windows(x - z, (2, 2), 1, 0).mean((4, 5)), 1, z, "uint8")
        total = stored(x + y - 2 * z, 2, z, "uint8")
        return total if steps == "sum" else stored((total - z) * 2, 1, z, "uint8")

    operands = [whole(1, 3, 5, 6, dtype="uint8", make=data, seed=seed) for seed in (0, 1)]
    numbers = (number(1.0), number(2.0), number(point, "uint8"))
    within_a_step(Case(function, (*operands, *numbers), reference).offloads(), share=0)


# ---------------------------------------------------------------- links that are not complete
def broken(change):
    """A link with one of its parts changed; computed in float32."""
    case = link((1, 8, 5, 5), (6, 8, 3, 3))

    def function(x, xs, xz, w, ws, wz, b, ys, yz):
        dx, dw = op.dequantize(x, xs, xz, axis=1), op.dequantize(w, ws, wz, axis=0)
        if change == "float_source":
            dx = nn.relu(dx)
        if change == "float_weights":
            dw = op.multiply(dw, dw)
        if change == "axis":
            dw = op.dequantize(w, relax.const(np.full(8, 0.01, "float32")), relax.const(np.array(0, "int8")), axis=1)
        if change == "zero_point":
            dw = op.dequantize(w, ws, relax.const(np.array(5, "int8")), axis=0)
        if change == "channels":
            dx = op.dequantize(x, relax.const(np.full(8, 0.01, "float32")), xz, axis=1)
        y = nn.relu(op.add(nn.conv2d(dx, dw), b))
        q = op.quantize(y, ys, yz, axis=1, out_dtype="uint8")
        return (q, y) if change == "readers" else q

    return Case(function, case.operands)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("float_source", "the source of the convolution are no dequantised integers"),
        ("float_weights", "the weights of the convolution are no dequantised integers"),
        ("axis", "extend along axis 1, not along the channels of the result"),
        ("channels", "the source has a scale or a zero point for each channel"),
        ("readers", "the real result of convolution is read elsewhere too"),
    ],
)
def test_an_incomplete_link_says_what_is_missing(change, reason):
    case = broken(change).offloads()
    (graph,) = case.graphs()
    assert any(reason in node.apart for node in graph.nodes), [n.apart for n in graph.nodes]
    got, want = case.run(), case.run(partitioned=False)
    off = np.abs(got[0].astype(int) - want[0])
    assert off.max() <= 1 and (off > 0).mean() <= 0.02


def test_another_scale_is_no_round_trip():
    def function(x, s, s2, z):
        return op.quantize(nn.max_pool2d(op.dequantize(x, s, z), (2, 2)), s2, z, out_dtype="uint8")

    def reference(x, s, s2, z):
        y = np.float32(windows(x, (2, 2), 1, 0).max((4, 5)) - z) * np.float32(s)
        return stored(y / np.float32(s2), 1, z, "uint8")

    operands = (whole(1, 3, 6, 6, dtype="uint8", make=data), number(0.02), number(0.05), number(100, "uint8"))
    within_a_step(Case(function, operands, reference).offloads().becomes("pooling", "eltwise"))


def test_scales_given_at_run_time():
    """A product takes them; nothing that has to know them is assumed."""

    def function(x, w, s, ws, z):
        y = op.matmul(op.dequantize(x, s, z), op.dequantize(w, ws, z))
        return op.quantize(y, s, z, out_dtype="int8")

    operands = (
        whole(4, 33, make=data),
        whole(33, 9, seed=1),
        data(values=np.float32(0.02)),
        data(values=np.float32(0.003)),
        number(0, "int8"),
    )
    case = Case(function, operands, lambda x, w, s, ws, z: stored(x @ w * ws * s, s, z, "int8"))
    within_a_step(case.offloads().becomes("matmul"))


def test_a_half_at_another_scale_is_rounded_without_the_zero_point():
    """At half the scale every odd integer lies halfway; a sum with an odd zero point would be rounded the other way."""

    def function(x, s, z, s2, z2):
        return op.quantize(op.permute_dims(op.dequantize(x, s, z), [0, 2, 1]), s2, z2, out_dtype="uint8")

    def reference(x, s, z, s2, z2):
        return stored(np.swapaxes(x - z, 1, 2) * s, s2, z2, "uint8")

    numbers = (number(0.25), number(3, "uint8"), number(0.5), number(5, "uint8"))
    case = Case(function, (whole(2, 9, 16, dtype="uint8", make=data), *numbers), reference)
    within_a_step(case.offloads().becomes("lookup"), share=0)


def test_zero_points_for_each_channel_of_a_depthwise_convolution():
    """Nothing multiplies such integers: the weights are dequantised first, which oneDNN's reorder cannot do at once."""
    zeros, scales = np.arange(8) % 4 - 1, 2.0 ** (np.arange(8) % 3 - 4)

    def function(x, s, z, w, ws, wz, s2, z2):
        weights = op.dequantize(w, ws, wz, axis=0)
        y = nn.conv2d(op.dequantize(x, s, z), weights, padding=1, groups=8)
        return op.quantize(y, s2, z2, out_dtype="uint8")

    def reference(x, s, z, w, ws, wz, s2, z2):
        real = (w - spread(zeros, 4, 0)) * spread(scales, 4, 0)
        return stored(convolved(x - z, real, 1, 1, 8) * s, s2, z2, "uint8")

    operands = (
        whole(2, 8, 6, 5, dtype="uint8", make=data),
        *(number(0.25), number(3, "uint8"), whole(8, 1, 3, 3), number(scales), number(zeros, "int8")),
        *(number(16.0), number(5, "uint8")),
    )
    within_a_step(Case(function, operands, reference).offloads(), share=0)
