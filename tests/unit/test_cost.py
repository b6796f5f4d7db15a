"""FLOPs and bytes: exact for products, per element for the rest, 0 for views."""

import pytest
from tvm import relax, tirx

from tvm_byoc_dnnl.graph.cost import call_bytes, call_flops, type_bytes
from tvm_byoc_dnnl.whole.table import operator


def var(*shape, dtype="float32"):
    return relax.Var("x", relax.TensorType(shape, dtype))


def normal(call):
    return relax.BlockBuilder().normalize(call)


nn = relax.op.nn
CASES = {
    "conv2d": (nn.conv2d(var(1, 8, 10, 10), var(16, 8, 3, 3)), 2 * 16 * 8 * 8 * 8 * 9),
    "conv2d, groups": (nn.conv2d(var(1, 8, 10, 10), var(16, 2, 3, 3), groups=4), 2 * 16 * 8 * 8 * 2 * 9),
    "conv2d, NHWC": (
        nn.conv2d(var(1, 10, 10, 8), var(3, 3, 8, 16), data_layout="NHWC", kernel_layout="HWIO"),
        2 * 16 * 8 * 8 * 8 * 9,
    ),
    "conv2d_transpose": (nn.conv2d_transpose(var(1, 8, 4, 4), var(8, 3, 2, 2), strides=2), 2 * 8 * 16 * 3 * 4),
    "matmul": (relax.op.matmul(var(5, 2, 3), var(3, 7)), 2 * 5 * 2 * 7 * 3),
    "matmul of vectors": (relax.op.matmul(var(3), var(3)), 2 * 3),
    "einsum": (relax.op.einsum((var(2, 3, 4), var(2, 4, 5)), "bij,bjk->bik"), 2 * 2 * 3 * 4 * 5),
    "attention": (nn.attention(*(var(2, 6, 4, 8) for _ in range(3))), 2 * 4 * 6 * 6 * (16 + 5 + 16)),
    "GRU": (
        operator("", "GRU").call([var(7, 2, 3), var(1, 15, 3), var(1, 15, 5)], {}, [True, True], ""),
        2 * 7 * 2 * 15 * (3 + 5),
    ),
    "max_pool2d": (nn.max_pool2d(var(1, 2, 8, 8), (2, 2), (2, 2)), 2 * 16 * 4),
    "add": (relax.op.add(var(4, 5), var(5)), 20),
    "softmax": (nn.softmax(var(4, 5)), 100),
    "mean": (relax.op.mean(var(4, 5)), 20),
    "reshape": (relax.op.reshape(var(4, 5), (20,)), 0),
    "permute": (relax.op.permute_dims(var(4, 5)), 0),
    "cast to the same type": (relax.op.astype(var(4, 5), "float32"), 0),
    "cast": (relax.op.astype(var(4, 5), "float16"), 20),
}


@pytest.mark.parametrize(("call", "flops"), CASES.values(), ids=CASES)
def test_flops(call, flops):
    assert call_flops(normal(call)) == flops


def test_a_symbolic_dim_counts_as_one():
    n = tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType((n, 3), "float32"))
    assert call_flops(normal(relax.op.matmul(x, var(3, 7)))) == 2 * 3 * 7
    assert type_bytes(relax.TensorType((n * 2 + 1, 4), "float32")) == 3 * 4 * 4


def test_an_unknown_shape_counts_nothing():
    x = relax.Var("x", relax.TensorType(dtype="float32", ndim=2))
    assert call_flops(normal(relax.op.exp(x))) == 0


@pytest.mark.parametrize(
    ("ty", "size"),
    [
        (relax.TensorType((2, 3), "float16"), 12),
        (relax.TensorType((5,), "bool"), 5),
        (relax.TensorType((), "float32"), 4),
        (relax.TupleType([relax.TensorType((2,), "int8"), relax.TensorType((2,), "float64")]), 18),
        (relax.ShapeType(ndim=2), 0),
    ],
    ids=str,
)
def test_bytes_of_a_type(ty, size):
    assert type_bytes(ty) == size


def test_bytes_of_a_call():
    assert call_bytes(normal(relax.op.matmul(var(2, 3), var(3, 4)))) == 4 * (6 + 12 + 8)
