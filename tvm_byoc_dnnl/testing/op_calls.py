"""An example call of every operator that TVM can lower, for tests of translators and the conformance kit."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax, tirx
from tvm.relax import op as R
from tvm.script import tirx as T

_RNG = np.random.default_rng(0)


def floats(*shape: int, low: float = -1.0, high: float = 1.0) -> np.ndarray:
    """Uniform noise."""
    return _RNG.uniform(low, high, shape).astype("float32")


def positive(*shape: int) -> np.ndarray:
    """Uniform noise in [0.5, 2)."""
    return floats(*shape, low=0.5, high=2.0)


def integers(*shape: int, low: int = 0, high: int = 10, dtype: str = "int64") -> np.ndarray:
    """Random integers."""
    return _RNG.integers(low, high, shape).astype(dtype)


def bools(*shape: int) -> np.ndarray:
    """Random truth values."""
    return _RNG.integers(0, 2, shape).astype("bool")


def const(value: Any, dtype: str = "float32") -> relax.Expr:
    """A constant."""
    return relax.const(np.array(value, dtype), dtype)


UNARY = (
    *("abs", "acos", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "erf", "exp", "floor", "isfinite"),
    *("isinf", "isnan", "negative", "round", "sigmoid", "sign", "sin", "sinh", "square", "tan", "tanh", "trunc"),
)
BINARY = (
    *("add", "atan2", "divide", "equal", "floor_divide", "floor_mod", "greater", "greater_equal", "less"),
    *("less_equal", "log_add_exp", "maximum", "minimum", "mod", "multiply", "not_equal", "subtract"),
)


@T.prim_func(private=True, s_tir=True)
def _double(a: T.Buffer((3, 5), "float32"), b: T.Buffer((3, 5), "float32")):  # type: ignore
    for i, j in T.grid(3, 5):
        with T.sblock("double"):
            vi, vj = T.axis.remap("SS", [i, j])
            b[vi, vj] = a[vi, vj] * T.float32(2)


def _call_tir(builder: relax.BlockBuilder, x: relax.Expr) -> relax.Expr:
    return R.call_tir(builder.add_func(_double, "double"), [x], relax.TensorType((3, 5), "float32"))


def _call_tir_with_grad(builder: relax.BlockBuilder, x: relax.Expr) -> relax.Expr:
    gvar = builder.add_func(_double, "double")
    return R.call_tir_with_grad(gvar, [x], relax.TensorType((3, 5), "float32"), te_grad_name="none")


def _depth_to_space(x: relax.Expr) -> relax.Expr:
    x = R.permute_dims(R.reshape(x, (1, 2, 2, 2, 3, 3)), [0, 1, 4, 2, 5, 3])
    return R.reshape(x, (1, 2, 6, 6))


# Calls that TVM cannot compile by itself are compared with these functions instead.
REFERENCE: dict[str, Any] = {
    "builtin.stop_lift_params": lambda x: R.multiply(x, const(1)),
    "call_tir_with_grad": lambda x: R.multiply(x, const(2)),
    "nn.pixel_shuffle": _depth_to_space,
}

# op without "relax." -> (function of Relax expressions, example arrays)
OPS: dict[str, tuple[Any, tuple[np.ndarray, ...]]] = {
    **{name: (getattr(R, name), (floats(3, 5),)) for name in UNARY},
    **{name: (getattr(R, name), (positive(3, 5), positive(5))) for name in BINARY},
    "acosh": (R.acosh, (floats(3, 5, low=1.5, high=3),)),
    "log": (R.log, (positive(3, 5),)),
    "sqrt": (R.sqrt, (positive(3, 5),)),
    "rsqrt": (R.rsqrt, (positive(3, 5),)),
    "power": (R.power, (positive(3, 5), floats(3, 5))),
    "clip": (lambda x: R.clip(x, -0.3, 0.4), (floats(3, 5),)),
    "bitwise_not": (R.bitwise_not, (integers(3, 5),)),
    **{f"bitwise_{n}": (getattr(R, f"bitwise_{n}"), (integers(3, 5), integers(5))) for n in ("and", "or", "xor")},
    **{f"{n}_shift": (getattr(R, f"{n}_shift"), (integers(3, 5), integers(5, high=4))) for n in ("left", "right")},
    "logical_not": (R.logical_not, (bools(3, 5),)),
    **{f"logical_{n}": (getattr(R, f"logical_{n}"), (bools(3, 5), bools(5))) for n in ("and", "or", "xor")},
    # reductions, search, scans
    **{
        name: (lambda x, name=name: getattr(R, name)(x, axis=[1], keepdims=True), (positive(3, 5, 2),))
        for name in ("max", "mean", "min", "prod", "std", "sum", "variance", "median")
    },
    "argmax": (lambda x: R.argmax(x, axis=1), (floats(3, 5),)),
    "argmin": (lambda x: R.argmin(x, axis=1, keepdims=True), (floats(3, 5),)),
    "where": (R.where, (bools(3, 5), floats(3, 5), floats(5))),
    "bucketize": (lambda x, b: R.bucketize(x, b), (floats(3, 5), np.linspace(-1, 1, 6, dtype="float32"))),
    "sort": (lambda x: R.sort(x, axis=1, descending=True), (floats(3, 5),)),
    "argsort": (lambda x: R.argsort(x, axis=0), (floats(3, 5),)),
    "topk": (lambda x: R.topk(x, k=2, axis=1), (floats(3, 5),)),
    "cumsum": (lambda x: R.cumsum(x, axis=1), (floats(3, 5),)),
    "cumprod": (lambda x: R.cumprod(x, axis=0, exclusive=True), (positive(3, 5),)),
    # creation
    "full": (lambda v: R.full((3, 5), v, "float32"), (np.array(2.5, "float32"),)),
    "full_like": (lambda x: R.full_like(x, const(2.5)), (floats(3, 5),)),
    "ones": (lambda x: R.add(x, R.ones((3, 5), "float32")), (floats(3, 5),)),
    "ones_like": (R.ones_like, (floats(3, 5),)),
    "zeros": (lambda x: R.add(x, R.zeros((3, 5), "float32")), (floats(3, 5),)),
    "zeros_like": (R.zeros_like, (floats(3, 5),)),
    "eye": (lambda x: R.add(x, R.eye(3, 5, 1, dtype="float32")), (floats(3, 5),)),
    "eye_like": (lambda x: R.eye_like(x, 1), (floats(3, 5),)),
    "tril": (lambda x: R.tril(x, 1), (floats(2, 3, 5),)),
    "triu": (lambda x: R.triu(x, -1), (floats(2, 3, 5),)),
    "arange": (lambda x: R.add(x, R.arange(0, 10, 2, "float32")), (floats(5),)),
    "hamming_window": (lambda x: R.add(x, R.hamming_window(5, True, 0.54, 0.46, "float32")), (floats(5),)),
    "shape_of": (lambda x: R.shape_to_tensor(R.shape_of(x)), (floats(3, 5),)),
    "shape_to_tensor": (lambda x: R.add(x, R.shape_to_tensor(relax.ShapeExpr([2, 7]))), (integers(2),)),
    "tensor_to_shape": (lambda x: R.reshape(x, R.tensor_to_shape(const([5, 3], "int64"))), (floats(3, 5),)),
    "size": (R.size, (floats(3, 5),)),
    "astype": (lambda x: R.astype(x, "int32"), (floats(3, 5, high=9),)),
    # shapes and indices
    "broadcast_to": (lambda x: R.broadcast_to(x, (2, 3, 5)), (floats(3, 1),)),
    "collapse_sum_like": (R.collapse_sum_like, (floats(3, 5), floats(1, 5))),
    "collapse_sum_to": (lambda x: R.collapse_sum_to(x, (3, 1)), (floats(3, 5),)),
    "concat": (lambda x, y: R.concat([x, y], axis=1), (floats(3, 5), floats(3, 2))),
    "stack": (lambda x, y: R.stack([x, y], axis=1), (floats(3, 5), floats(3, 5))),
    "split": (lambda x: R.split(x, [2, 3], axis=1), (floats(3, 5),)),
    "meshgrid": (lambda x, y: R.meshgrid([x, y], "ij"), (floats(3), floats(5))),
    "expand_dims": (lambda x: R.expand_dims(x, [0, 2]), (floats(3, 5),)),
    "flatten": (R.flatten, (floats(3, 5),)),
    "squeeze": (lambda x: R.squeeze(x, [1]), (floats(3, 1, 5),)),
    "reshape": (lambda x: R.reshape(x, (5, 3)), (floats(3, 5),)),
    "permute_dims": (lambda x: R.permute_dims(x, [2, 0, 1]), (floats(2, 3, 5),)),
    "layout_transform": (
        lambda x: R.layout_transform(x, lambda i, j: (i, j // 4, j % 4), pad_value=0.0),
        (floats(3, 6),),
    ),
    "repeat": (lambda x: R.repeat(x, 2, 1), (floats(3, 5),)),
    "tile": (lambda x: R.tile(x, [2, 3]), (floats(3, 5),)),
    "flip": (lambda x: R.flip(x, 1), (floats(3, 5),)),
    "reverse_sequence": (
        lambda x, n: R.reverse_sequence(x, n, seq_axis=1, batch_axis=0),
        (floats(3, 5), integers(3, low=1, high=6)),
    ),
    "one_hot": (
        lambda i: R.one_hot(i, tirx.const(1.0, "float32"), tirx.const(0.0, "float32"), 5, -1),
        (integers(4, high=5),),
    ),
    "outer": (R.outer, (floats(3), floats(5))),
    "take": (lambda x, i: R.take(x, i, axis=0), (floats(6, 5), integers(4, high=6))),
    "gather_elements": (lambda x, i: R.gather_elements(x, i, 1), (floats(3, 5), integers(3, 2, high=5))),
    "gather_nd": (R.gather_nd, (floats(3, 5), integers(4, 2, high=3))),
    "index_tensor": (
        lambda x, i, j: R.index_tensor(x, [i, j]),
        (floats(3, 5), integers(4, high=3), integers(4, high=5)),
    ),
    "index_put": (
        lambda x, i, v: R.index_put(x, relax.Tuple([i]), v),
        (floats(6), np.array([4, 1], "int64"), floats(2)),
    ),
    "scatter_elements": (
        lambda x, i, u: R.scatter_elements(x, i, u, 0, "add"),
        (floats(3, 5), integers(2, 5, high=3), floats(2, 5)),
    ),
    "scatter_nd": (lambda x, i, u: R.scatter_nd(x, i, u, "add"), (floats(6), integers(4, 1, high=6), floats(4))),
    "slice_scatter": (
        lambda x, s: R.slice_scatter(
            x, s, tirx.const(1, "int64"), tirx.const(5, "int64"), tirx.const(2, "int64"), axis=0
        ),
        (floats(6, 5), floats(2, 5)),
    ),
    "strided_slice": (lambda x: R.strided_slice(x, [0, 1], [1, 0], [4, 5], [2, 1]), (floats(5, 5),)),
    # linear algebra, quantisation
    "matmul": (R.matmul, (floats(2, 3, 4), floats(4, 5))),
    "einsum": (lambda a, b: R.einsum([a, b], "ij,jk->ik"), (floats(3, 4), floats(4, 5))),
    "quantize": (
        lambda x, s, z: R.quantize(x, s, z, axis=0, out_dtype="int8"),
        (floats(3, 5), positive(3), integers(3, dtype="int8")),
    ),
    "dequantize": (
        lambda x, s, z: R.dequantize(x, s, z, axis=1, out_dtype="float32"),
        (integers(3, 5, dtype="int8"), positive(5), integers(5, dtype="int8")),
    ),
    # neural networks
    "nn.conv1d": (lambda x, w: R.nn.conv1d(x, w, padding=1), (floats(2, 3, 8), floats(4, 3, 3))),
    "nn.conv2d": (
        lambda x, w: R.nn.conv2d(x, w, strides=2, padding=1, groups=2),
        (floats(1, 4, 8, 8), floats(6, 2, 3, 3)),
    ),
    "nn.conv3d": (lambda x, w: R.nn.conv3d(x, w), (floats(1, 2, 4, 5, 5), floats(3, 2, 3, 3, 3))),
    "nn.conv1d_transpose": (lambda x, w: R.nn.conv1d_transpose(x, w, strides=2), (floats(1, 3, 6), floats(3, 4, 3))),
    "nn.conv2d_transpose": (
        lambda x, w: R.nn.conv2d_transpose(x, w, strides=2, padding=1),
        (floats(1, 3, 5, 5), floats(3, 4, 3, 3)),
    ),
    "nn.conv3d_transpose": (lambda x, w: R.nn.conv3d_transpose(x, w), (floats(1, 2, 3, 3, 3), floats(2, 3, 2, 2, 2))),
    **{
        f"nn.{kind}_pool{d}d": (
            lambda x, name=f"{kind}_pool{d}d", d=d: getattr(R.nn, name)(x, [3] * d, [2] * d, padding=[1] * d),
            (floats(1, 2, *[7] * d),),
        )
        for kind in ("max", "avg")
        for d in (1, 2, 3)
    },
    **{
        f"nn.adaptive_avg_pool{d}d": (
            lambda x, d=d: getattr(R.nn, f"adaptive_avg_pool{d}d")(x, [2] * d),
            (floats(1, 2, *[5] * d),),
        )
        for d in (1, 2, 3)
    },
    **{f"nn.{n}": (getattr(R.nn, n), (floats(3, 5),)) for n in ("relu", "gelu", "gelu_tanh", "selu", "silu")},
    "nn.softplus": (R.nn.softplus, (floats(3, 5),)),
    "nn.leakyrelu": (lambda x: R.nn.leakyrelu(x, 0.1), (floats(3, 5),)),
    "nn.prelu": (R.nn.prelu, (floats(2, 3, 4), floats(3))),
    "nn.softmax": (R.nn.softmax, (floats(3, 5),)),
    "nn.log_softmax": (R.nn.log_softmax, (floats(3, 5),)),
    "nn.pad": (lambda x: R.nn.pad(x, [1, 2, 0, 1], pad_value=0.5), (floats(3, 5),)),
    "nn.pixel_shuffle": (lambda x: R.nn.pixel_shuffle(x, 2), (floats(1, 8, 3, 3),)),
    "nn.batch_flatten": (R.nn.batch_flatten, (floats(2, 3, 4),)),
    "nn.batch_norm": (
        lambda x, g, b, m, v: R.nn.batch_norm(x, g, b, m, v, axis=1),
        (floats(2, 3, 4, 4), positive(3), floats(3), floats(3), positive(3)),
    ),
    "nn.layer_norm": (lambda x, g, b: R.nn.layer_norm(x, g, b, axes=[-1]), (floats(3, 6), positive(6), floats(6))),
    "nn.group_norm": (
        lambda x, g, b: R.nn.group_norm(x, g, b, num_groups=2, channel_axis=1, axes=[2, 3]),
        (floats(2, 4, 3, 3), positive(4), floats(4)),
    ),
    "nn.instance_norm": (
        lambda x, g, b: R.nn.instance_norm(x, g, b, channel_axis=1, axes=[2, 3]),
        (floats(2, 4, 3, 3), positive(4), floats(4)),
    ),
    "nn.rms_norm": (lambda x, g: R.nn.rms_norm(x, g, axes=[-1]), (floats(3, 6), positive(6))),
    "nn.dropout": (lambda x: R.nn.dropout(x, 0.5), (floats(3, 5),)),
    "nn.attention": (R.nn.attention, (floats(1, 4, 2, 8), floats(1, 6, 2, 8), floats(1, 6, 2, 8))),
    "nn.attention_bias": (
        lambda q, k, v, b: R.nn.attention(q, k, v, b),
        (floats(1, 4, 2, 8), floats(1, 6, 2, 8), floats(1, 6, 2, 8), floats(1, 2, 4, 6)),
    ),
    "nn.cross_entropy_with_logits": (R.nn.cross_entropy_with_logits, (floats(3, 5), floats(3, 5))),
    "nn.nll_loss": (
        lambda p, t, w: R.nn.nll_loss(p, t, w, reduction="mean"),
        (floats(3, 5), integers(3, high=5), positive(5)),
    ),
    # images and vision
    "image.resize2d": (lambda x: R.image.resize2d(x, (7, 9), method="linear"), (floats(1, 2, 4, 5),)),
    "image.resize3d": (lambda x: R.image.resize3d(x, (4, 5, 6), method="nearest_neighbor"), (floats(1, 2, 3, 3, 3),)),
    "image.affine_grid": (lambda t: R.image.affine_grid(t, (4, 5)), (floats(2, 2, 3),)),
    "image.grid_sample": (R.image.grid_sample, (floats(1, 2, 5, 5), floats(1, 2, 4, 4))),
    "vision.roi_align": (
        lambda x, r: R.vision.roi_align(x, r, (2, 2), 1.0, 2),
        (floats(1, 2, 8, 8), np.array([[0, 1, 1, 6, 6]], "float32")),
    ),
    "vision.roi_pool": (
        lambda x, r: R.vision.roi_pool(x, r, (2, 2), 1.0),
        (floats(1, 2, 8, 8), np.array([[0, 1, 1, 6, 6]], "float32")),
    ),
    "vision.all_class_non_max_suppression": (
        lambda b, s: R.vision.all_class_non_max_suppression(
            b, s, const(3, "int64"), const(0.5), const(0.0), output_format="tensorflow"
        ),
        (np.sort(positive(1, 6, 4), axis=-1), positive(1, 2, 6)),
    ),
    "vision.get_valid_counts": (
        lambda x: R.vision.get_valid_counts(x, 0.9, id_index=-1, score_index=0),
        (positive(1, 5, 5),),
    ),
    "vision.non_max_suppression": (
        lambda x, n, i: R.vision.non_max_suppression(
            x, n, i, iou_threshold=0.5, coord_start=1, score_index=0, id_index=-1
        ),
        (np.sort(positive(1, 5, 5), axis=-1), np.array([5], "int32"), np.arange(5, dtype="int32")[None]),
    ),
    "vision.multibox_transform_loc": (
        R.vision.multibox_transform_loc,
        (floats(1, 2, 4), floats(1, 16), positive(1, 4, 4)),
    ),
    # gradients
    **{f"grad.{n}": (getattr(R.grad, n), (floats(3, 5),)) for n in ("no_grad", "start_checkpoint", "end_checkpoint")},
    "grad.nll_loss_backward": (
        lambda g, p, t, w: R.grad.nll_loss_backward(g, p, t, w, reduction="mean"),
        (floats(), floats(3, 5), integers(3, high=5), positive(5)),
    ),
    **{
        f"grad.{kind}_pool2d_backward": (
            lambda g, x, kind=kind: getattr(R.grad, f"{kind}_pool2d_backward")(g, x, (2, 2), (2, 2)),
            (floats(1, 2, 3, 3), floats(1, 2, 6, 6)),
        )
        for kind in ("max", "avg")
    },
    "grad.take_backward": (
        lambda g, x, i: R.grad.take_backward(g, x, i, axis=0),
        (floats(4, 5), floats(6, 5), integers(4, high=6)),
    ),
    # structure
    "builtin.stop_lift_params": (R.builtin.stop_lift_params, (floats(3, 5),)),
    "call_tir": (_call_tir, (floats(3, 5),)),
    "call_tir_with_grad": (_call_tir_with_grad, (floats(3, 5),)),
}

#: functions of the table whose first argument is the block builder
NEEDS_BUILDER = (_call_tir, _call_tir_with_grad)
