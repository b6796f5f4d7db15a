"""Matrix products of all ranks, transposed and broadcast operands, and Einstein sums."""

from __future__ import annotations

import numpy as np
from tvm import relax

from tests.harness import Case, accept, const, data, refuse, table_tests

op = relax.op


def transposed(a_axes, b_axes):
    def function(a, b):
        a = a if a_axes is None else op.permute_dims(a, a_axes)
        return op.matmul(a, b if b_axes is None else op.permute_dims(b, b_axes))

    def reference(a, b):
        return np.matmul(a if a_axes is None else a.transpose(a_axes), b if b_axes is None else b.transpose(b_axes))

    return function, reference


def einsum(text):
    return lambda *args: op.einsum(list(args), text), lambda *args: np.einsum(text, *args)


MATMULS = [
    ((3, 4), (4, 5)),
    ((1, 1), (1, 1)),
    ((17, 13), (13, 11)),
    ((4,), (4, 5)),
    ((3, 4), (4,)),
    ((7,), (7,)),
    ((2, 3, 4), (4, 5)),
    ((2, 3, 4), (2, 4, 5)),
    ((1, 3, 4), (2, 4, 5)),
    ((2, 1, 3, 4), (3, 4, 5)),
    ((3, 4), (2, 4, 5)),
    ((2, 3, 4), (4,)),
    ((0, 4), (4, 5)),
    ((3, 0), (0, 5)),
    ((2, 0, 4), (2, 4, 5)),
    ((2, 2, 2, 3, 4), (2, 2, 2, 4, 1)),
]
EINSUMS = [
    ("ij,jk->ik", (3, 4), (4, 5)),
    ("ij,kj->ik", (3, 4), (5, 4)),
    ("bhsd,bhtd->bhst", (2, 3, 5, 4), (2, 3, 7, 4)),
    ("bshd,bthd->bhst", (2, 5, 3, 4), (2, 7, 3, 4)),
    ("bhst,bthd->bshd", (2, 3, 5, 7), (2, 7, 3, 4)),
    ("bij,jk->bik", (2, 3, 4), (4, 5)),
    ("abcd,cdef->abef", (2, 3, 4, 5), (4, 5, 1, 6)),
    ("i,i->", (7,), (7,)),
    ("i,j->ij", (3,), (5,)),
    ("i,j->ji", (3,), (5,)),
    ("ij,ij->ij", (3, 4), (3, 4)),
    ("ij,ij->i", (3, 4), (3, 4)),
    ("ij,jk->", (3, 4), (4, 5)),
    ("ijx,jk->ik", (3, 4, 2), (4, 5)),
    ("ij->ji", (3, 4)),
    ("ij->i", (3, 4)),
    ("ij->", (3, 4)),
    ("ij,jk,kl->il", (3, 4), (4, 5), (5, 2)),
    ("ij,jk", (3, 4), (4, 5)),
]

ACCEPT = [
    *(accept(f"matmul-{a}-{b}", op.matmul, data(*a), data(*b), reference=np.matmul) for a, b in MATMULS),
    *(
        accept(f"matmul-{a}-constant-{b}", op.matmul, data(*a), const(*b), reference=np.matmul)
        for a, b in MATMULS[:8:3]
    ),
    accept("matmul-constant-first", op.matmul, const(3, 4), data(4, 5), reference=np.matmul),
    *(
        accept(f"matmul-transposed-{axes}", transposed(*axes)[0], data(*a), data(*b), reference=transposed(*axes)[1])
        for axes, a, b in [
            (([1, 0], None), (4, 3), (4, 5)),
            ((None, [1, 0]), (3, 4), (5, 4)),
            (([1, 0], [1, 0]), (4, 3), (5, 4)),
            ((None, [0, 2, 1]), (2, 3, 4), (2, 5, 4)),
            (([0, 2, 1, 3], [0, 2, 3, 1]), (2, 5, 3, 4), (2, 7, 3, 4)),
        ]
    ),
    *(
        accept(
            f"matmul-{a}-transposed-constant-{b}-{dtype}",
            transposed(None, axes)[0],
            data(*a, dtype=dtype),
            const(*b, dtype=dtype),
            reference=transposed(None, axes)[1],
            prepare=False,  # which makes constants of such small ones
        )
        for a, b, axes, dtype in [
            ((3, 4), (5, 4), [1, 0], "float32"),
            ((1, 13), (7, 13), [1, 0], "float32"),
            ((2, 3, 4), (1, 4), [-1, -2], "float32"),
            ((4,), (5, 4), [1, 0], "float32"),
            ((2, 3, 4), (2, 5, 4), [0, 2, 1], "float32"),
            ((3, 33), (5, 33), [1, 0], "bfloat16"),
            ((0, 4), (5, 4), [1, 0], "float32"),
        ]
    ),
    accept(
        "matmul-bf16", op.matmul, data(3, 33, dtype="bfloat16"), const(33, 5, dtype="bfloat16"), reference=np.matmul
    ),
    accept("matmul-symbolic", op.matmul, data("n", 4), const(4, 5), reference=np.matmul, symbols={"n": 3}),
    accept("outer", op.outer, data(3), data(5), reference=np.outer),
    accept("outer-ones", op.outer, data(1), data(17), reference=np.outer),
    accept("outer-nothing", op.outer, data(0), data(17), reference=np.outer),
    accept("einsum-nothing", *einsum("ij,jk->ik")[:1], data(0, 4), data(4, 5), reference=einsum("ij,jk->ik")[1]),
    accept(
        "matmul-out-dtype",
        lambda a, b: op.matmul(a, b, out_dtype="float32"),
        *(data(3, 33, dtype="bfloat16"), const(33, 5, dtype="bfloat16")),
        reference=np.matmul,
    ),
    *(
        accept(f"einsum-{text}", einsum(text)[0], *(data(*s) for s in shapes), reference=einsum(text)[1])
        for text, *shapes in EINSUMS
    ),
]

REFUSE = [
    refuse("int8", "dtype int8", op.matmul, data(3, 4, dtype="int8"), data(4, 5, dtype="int8")),
    refuse("outer-int32", "dtype int32", op.outer, data(3, dtype="int32"), data(5, dtype="int32")),
    refuse("einsum-diagonal", "each once", einsum("ii->i")[0], data(3, 3)),
    refuse("einsum-dots", "only letters", einsum("...ij,jk->...ik")[0], data(2, 3, 4), data(4, 5)),
    refuse("einsum-float64", "dtype float64", einsum("ij,jk->ik")[0], *(data(3, 3, dtype="float64") for _ in "ab")),
]

test_accepted, test_refused = table_tests(ACCEPT, REFUSE)


def test_an_einsum_of_attention_is_one_product():
    shapes = (data(2, 5, 3, 4), data(2, 7, 3, 4))
    Case(einsum("bshd,bthd->bhst")[0], shapes).becomes("matmul")


def test_an_einsum_without_a_sum_is_a_product_of_elements():
    Case(einsum("bi,bj->bij")[0], (data(2, 3), data(2, 5))).becomes("binary")
