"""Operators of ONNX Runtime's own domain that it computes on other devices only, beside NumPy; and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest

import tvm_byoc_dnnl as byoc

from .node_cases import Case, data, given, placed, weight

X, G = data("B S 32"), weight("32")


def _softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _gelu(x: np.ndarray) -> np.ndarray:
    return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2


def _grouped(x: np.ndarray, gamma: np.ndarray, beta: np.ndarray, groups: int) -> np.ndarray:
    n, h, w, c = x.shape
    parts = x.astype("float64").reshape(n, h * w, groups, c // groups)
    mean, var = parts.mean((1, 3), keepdims=True), parts.var((1, 3), keepdims=True)
    y = ((parts - mean) / np.sqrt(var + 1e-5)).reshape(x.shape) * gamma + beta
    return y / (1 + np.exp(-y))


def _complex(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    c = (a[..., 0] + 1j * a[..., 1]) * (b[..., 0] + 1j * b[..., 1])
    return np.stack([c.real, c.imag], -1)


def _conv(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    moved = x.transpose(0, 3, 1, 2)
    windows = np.lib.stride_tricks.sliding_window_view(moved, w.shape[2:], (2, 3))
    return np.maximum(np.einsum("nchwij,ocij->nhwo", windows, w), 0)


def _statistics(x: np.ndarray, s: np.ndarray, g: np.ndarray) -> list[np.ndarray]:
    t = x + s
    mean, inverse = t.mean(-1, keepdims=True), 1 / np.sqrt(t.var(-1, keepdims=True) + 1e-5)
    return [(t - mean) * inverse * g, mean, inverse, t]


ELSEWHERE = [
    Case(
        "BiasSoftmax",
        {"axis": 3, "is_inner_broadcast": 1},
        reference=lambda x, b: _softmax(x + b),
        x=data("B 4 S T"),
        b=data("B 1 1 T"),
    ),
    Case(
        "BiasSoftmax",
        {"axis": 3, "is_inner_broadcast": 0},
        reference=lambda x, b: _softmax(x + b),
        x=data("B 4 S T"),
        b=data("S T"),
    ),
    Case("BiasSplitGelu", reference=lambda x, b: (lambda t: t[..., :16] * _gelu(t[..., 16:]))(x + b), x=X, b=G),
    Case("BiasAdd", reference=lambda x, b, s: x + b + s, x=X, b=G, s=data("B S 32")),
    Case(
        "GroupNorm",
        {"groups": 4, "activation": 1},
        reference=lambda x, g, b: _grouped(x, g, b, 4),
        x=data("B 5 6 8"),
        g=weight("8"),
        b=weight("8"),
    ),
    Case(
        "SkipGroupNorm",
        {"groups": 4, "activation": 1},
        reference=lambda x, g, b, s, c: [_grouped(x + s + c, g, b, 4), x + s + c],
        outputs=("y", "sum"),
        x=data("B 5 6 8"),
        g=weight("8"),
        b=weight("8"),
        s=data("B 5 6 8"),
        c=weight("8"),
    ),
    Case("ComplexMul", reference=_complex, a=data("B S 2"), b=data("B S 2")),
    Case("NhwcFusedConv", {"activation": "Relu"}, reference=_conv, x=data("B 6 7 3"), w=weight("4 3 3 3")),
    Case(
        "NhwcMaxPool",
        {"kernel_shape": [2, 2]},
        reference=lambda x: np.lib.stride_tricks.sliding_window_view(x, (2, 2), (1, 2)).max((-1, -2)),
        x=data("B 6 7 3", dtype="int8", low=-128, high=127),
    ),
    Case(
        "MulInteger",
        reference=lambda a, za, b, z: (a.astype("int32") - za) * (b.astype("int32") - z),
        a=data("B S", dtype="uint8", low=0, high=255),
        za=given(7, "uint8"),
        b=data("B S", dtype="uint8", low=0, high=255),
        z=given(9, "uint8"),
    ),
    Case(
        "ReduceSumInteger",
        {"axes": [1], "keepdims": 0},
        reference=lambda x: x.sum(1, dtype="int32"),
        x=data("B S", dtype="int8", low=-128, high=127),
    ),
    Case(
        "SkipLayerNormalization",
        {"epsilon": 1e-5},
        title="statistics",
        reference=_statistics,
        outputs=("y", "m", "v", "sum"),
        x=X,
        s=data("B S 32"),
        g=G,
    ),
]


@pytest.mark.native
@pytest.mark.parametrize(("case", "where"), placed(ELSEWHERE))
def test_contrib(case: Case, where: str) -> None:
    case.check(where)


@pytest.mark.parametrize("op", ["Conv", "MaxPool", "ReorderInput", "ReorderOutput"])
def test_the_layout_of_one_machine_is_refused(op: str) -> None:
    case = Case(
        op,
        {"kernel_shape": [3, 3]} if op in ("Conv", "MaxPool") else {},
        domain="com.microsoft.nchwc",
        x=data("B 8 6 6"),
        w=weight("8 8 3 3"),
    )
    with pytest.raises(byoc.UnsupportedError, match=rf"{op} \(node `the_node`\) has a layout .*ORT_ENABLE_EXTENDED"):
        byoc.to_relax(case.model())


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (
            Case(
                "MatMulNBits",
                {"N": 8, "K": 32, "bits": 3, "block_size": 32},
                x=X,
                q=weight("8 1 16", dtype="uint8", low=0, high=9),
                s=weight("8 1"),
            ),
            "has 3 bits",
        ),
        (
            Case(
                "MoE",
                {"use_sparse_mixer": 1},
                x=data("S 8"),
                r=data("S 2"),
                w1=weight("2 4 8"),
                b1=weight("2 4"),
                w2=weight("2 8 4"),
                b2=weight("2 8"),
            ),
            "has `use_sparse_mixer`",
        ),
        (
            Case("MoE", x=data("S 8"), r=data("S 2"), w1=weight("2 8 6"), b1=weight("2 6"), w2=weight("2 6 8")),
            "is not as ONNX defines it",
        ),
        (Case("Unique", outputs=("y",), x=data("S")), "a result whose size depends on the numbers"),
        (Case("CDist", {"metric": "cosine"}, a=data("S 6"), b=data("T 6")), "has the metric `cosine`"),
        (Case("SkipLayerNormalization", {"axis": 1}, x=X, s=data("B S 32"), g=G), "has the attribute `axis`"),
    ],
    ids=lambda v: v.id if isinstance(v, Case) else "",
)
def test_refusals_name_the_node_and_the_cause(case: Case, message: str) -> None:
    with pytest.raises(byoc.ByocError, match=rf"{case.op} \(node `the_node`\) .*{message}"):
        byoc.compile(case.model())
