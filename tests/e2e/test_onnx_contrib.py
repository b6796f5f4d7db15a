"""Operators of ONNX Runtime's own domain beside ONNX Runtime: norms, activations, products, weights of few bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from .node_cases import SIZES, Case, Given, data, given, placed, weight

B, S = SIZES["B"], SIZES["S"]
X, G, H = data("B S 32"), weight("32"), weight("32")
_RNG = np.random.default_rng(5)


# ---------------------------------------------------------------- norms
def skip(title: str, op: str = "SkipLayerNormalization", **kwargs: Any) -> Case:
    order = ("x", "skip", "gamma", "beta", "bias") if "Simplified" not in op else ("x", "skip", "gamma", "bias")
    operands = {"x": X, "skip": data("B S 32"), "gamma": G, **kwargs}
    return Case(
        op,
        {"epsilon": 1e-5},
        title=title,
        order=order,
        outputs=kwargs.pop("outputs", ("y",)),
        **{k: v for k, v in operands.items() if k != "outputs"},
    )


SUM = ("y", "", "", "sum")
SIMPLE = "SkipSimplifiedLayerNormalization"
NORMS = [
    skip("without a shift"),
    skip("whole", beta=H, bias=weight("32"), outputs=SUM),
    skip("one skip for all", skip=data("1 S 32"), beta=H, outputs=SUM),
    skip("plain", SIMPLE),
    skip("whole", SIMPLE, bias=weight("32"), outputs=SUM),
    skip("one skip for all", SIMPLE, skip=data("1 S 32"), outputs=SUM),
    Case("SimplifiedLayerNormalization", {"axis": -1, "stash_type": 1, "epsilon": 1e-5}, domain="", x=X, g=G),
    Case("SimplifiedLayerNormalization", {"axis": -1, "epsilon": 1e-5}, domain="", outputs=("y", "s"), x=X, g=G),
    Case("RMSNormalization", {"epsilon": 1e-4}, domain="", opset=23, x=X, g=G),
    Case("RMSNormalization", {"axis": 1}, domain="", opset=23, x=data("B 5 32"), g=weight("5 32")),
    Case(
        "RMSNormalization", {"axis": 1}, domain="", opset=23, title="axis=1, spread", x=data("B 5 32"), g=weight("32")
    ),
    *(
        Case(
            "EmbedLayerNormalization",
            {"epsilon": 1e-5},
            title=title,
            order=("ids", "parts", "words", "places", "kinds", "gamma", "beta", "mask", "pos"),
            ids=data("B S", dtype="int32", low=0, high=10),
            words=weight("10 32"),
            places=weight("12 32"),
            gamma=G,
            beta=H,
            **kwargs,
        )
        for title, kwargs in {
            "words": {"outputs": ("y", "ends")},
            "parts": {
                "parts": data("B S", dtype="int32", low=0, high=2),
                "kinds": weight("2 32"),
                "outputs": ("y", "ends", "sum"),
            },
            "mask": {"mask": given([[1, 1, 1, 0, 0], [1, 1, 1, 1, 0]], "int32", "B S"), "outputs": ("y", "ends")},
            "positions": {"pos": data("B S", dtype="int32", low=0, high=12), "outputs": ("y", "ends")},
        }.items()
    ),
]

# ---------------------------------------------------------------- activations and products
PRODUCTS = [
    Case("Gelu", x=X),
    Case("BiasGelu", x=X, b=G),
    Case("FastGelu", x=X, title="alone"),
    Case("FastGelu", x=X, b=G, title="bias"),
    Case("QuickGelu", {"alpha": 1.3}, x=X),
    Case("ScaledSiLU", {"alpha": 1.3}, x=X),
    Case(
        "FusedGemm",
        {"activation": "Selu", "activation_alpha": 1.1, "activation_gamma": 1.2},
        a=weight("3 4"),
        b=data("4 5"),
    ),
    Case("QuickGelu", x=X, title="default"),
    *(
        Case("FusedMatMul", {k: v for k, v in attrs.items() if v}, a=a, b=b, title=f"{attrs} {a[1]}")
        for attrs, a, b in [
            ({"alpha": 0.5}, data("B S 6"), weight("6 7")),
            ({"transA": 1}, data("B 6 S"), data("B 6 7")),
            ({"transB": 1, "alpha": 2.0}, data("B S 6"), data("B 7 6")),
            ({"transA": 1, "transB": 1}, data("B 6 S"), weight("7 6")),
            ({"transBatchA": 1}, data("S B 4 6"), data("B 4 6 7")),
            ({"transBatchB": 1}, data("B 4 S 6"), data("6 B 4 7")),
            ({"transBatchA": 1, "transA": 1}, data("6 B 4 S"), data("B 4 6 7")),
            ({"transBatchA": 1, "transBatchB": 1, "transB": 1}, data("S B 4 6"), data("7 B 4 6")),
        ]
    ),
    Case("FusedGemm", {"transB": 1, "alpha": 0.5, "activation": "Relu"}, x=data("B 6"), w=weight("7 6"), c=weight("7")),
    Case(
        "FusedGemm",
        {"activation": "LeakyRelu", "activation_alpha": 0.2},
        x=data("B 6"),
        w=weight("6 7"),
        c=weight("7"),
    ),
    *(
        Case("FusedConv", attrs, x=data("B 3 8 9"), w=weight("4 3 3 3"), b=weight("4"), **rest)
        for attrs, rest in [
            ({"activation": "Relu", "pads": [1, 1, 1, 1]}, {}),
            ({"activation": "Clip", "activation_params": [-0.5, 0.7]}, {}),
            ({"activation": "LeakyRelu", "activation_params": [0.3], "strides": [2, 2]}, {}),
            ({"activation": "HardSigmoid", "activation_params": [0.2, 0.4]}, {}),
            ({"activation": "Relu"}, {"z": data("B 4 6 7")}),
        ]
    ),
    Case(
        "MatMulIntegerToFloat",
        title="zero points",
        a=data("B S 6", dtype="uint8", low=0, high=255),
        b=weight("6 7", dtype="int8", low=-128, high=127),
        sa=given(0.02, "float32"),
        sb=weight("7", low=0.01, high=0.03),
        za=given(120, "uint8"),
        zb=weight("7", dtype="int8", low=-5, high=5),
        c=weight("7"),
    ),
    Case(
        "MatMulIntegerToFloat",
        title="plain",
        a=data("B S 6", dtype="uint8", low=0, high=255),
        b=weight("6 7", dtype="uint8", low=0, high=255),
        sa=given(0.02, "float32"),
        sb=given(0.03, "float32"),
    ),
    Case(
        "DynamicQuantizeMatMul",
        title="per column",
        order=("x", "w", "s", "z", "c"),
        x=data("B S 6"),
        w=weight("6 7", dtype="int8", low=-128, high=127),
        s=weight("7", low=0.01, high=0.03),
        z=weight("7", dtype="int8", low=-5, high=5),
        c=weight("7"),
        atol=1e-4,
    ),
    Case(
        "DynamicQuantizeMatMul",
        title="plain",
        x=data("B S 6"),
        w=weight("6 7", dtype="uint8", low=0, high=255),
        s=given(0.03, "float32", constant=True),
        z=given(127, "uint8", constant=True),
        atol=1e-4,
    ),
]


# ---------------------------------------------------------------- weights of few bits
def nbits(n: int, k: int, bits: int, block: int, *, zeros: str = "", order: bool = False, bias: bool = False) -> Case:
    blocks = -(-k // block)
    rest: dict[str, Any] = {}
    if zeros == "packed":
        rest["z"] = given(_RNG.integers(0, 256, (n, -(-blocks * bits // 8))), "uint8", constant=True)
    elif zeros:
        rest["z"] = given(_RNG.uniform(0, 1 << bits, (n, blocks)), "float32", constant=True)
    if order:
        rest["g"] = given(_RNG.permutation(np.arange(k) // block), "int32", constant=True)
    if bias:
        rest["c"] = weight(f"{n}")
    return Case(
        "MatMulNBits",
        {"N": n, "K": k, "bits": bits, "block_size": block},
        title=f"{n} {k} bits={bits} block={block} zeros={zeros} order={order} bias={bias}",
        order=("x", "q", "s", "z", "g", "c"),
        x=data(f"B S {k}"),
        q=given(_RNG.integers(0, 256, (n, blocks, block * bits // 8)), "uint8", constant=True),
        s=given(_RNG.uniform(0.01, 0.03, (n, blocks)), "float32", constant=True),
        rtol=1e-3,
        atol=2e-4,
        **rest,
    )


def rows(bits: int, block: int, zeros: bool = False, kind: str = "", indices: Any = None) -> Case:
    packed: Any = {"d": given(_RNG.integers(0, 256, (10, 64 * bits // 8)), "uint8", constant=True)}
    if kind:
        low, name = (-8, TensorProto.INT4) if kind == "int8" else (0, TensorProto.UINT4)
        packed = {"d": given(_RNG.integers(low, low + 16, (10, 64)), kind, constant=True, kind=name)}
    blocks = 64 // block
    if zeros:
        packed["z"] = given(_RNG.integers(0, 256, (10, -(-blocks * bits // 8))), "uint8", constant=True)
    return Case(
        "GatherBlockQuantized",
        {"block_size": block, "gather_axis": 0, "quantize_axis": 1, **({} if kind else {"bits": bits})},
        title=f"bits={bits} block={block} zeros={zeros} kind={kind} {indices is not None}",
        order=("d", "i", "s", "z"),
        i=indices if indices is not None else given([[1, 9, 0, 3, 3], [-1, 2, -10, 5, 5]], "int64", "B S"),
        s=given(_RNG.uniform(0.01, 0.03, (10, blocks)), "float32", constant=True),
        **packed,
    )


STORED = [
    *(nbits(24, 64, bits, block) for bits in (4, 8) for block in (16, 32, 64)),
    nbits(24, 128, 4, 128),
    nbits(24, 256, 4, 256, zeros="packed"),
    nbits(24, 64, 2, 32),
    nbits(24, 64, 2, 32, zeros="packed"),
    nbits(24, 64, 4, 32, zeros="packed", bias=True),
    nbits(24, 64, 8, 32, zeros="packed"),
    nbits(24, 64, 4, 32, zeros="float"),
    nbits(24, 80, 4, 32),
    nbits(24, 80, 4, 32, zeros="packed"),
    nbits(24, 64, 4, 32, order=True),
    *(rows(bits, block, zeros) for bits in (4, 8) for block in (16, 32) for zeros in (False, True)),
    rows(4, 32, kind="int8"),
    rows(4, 32, kind="uint8"),
    rows(4, 32, indices=given([99, 1], "int64")),
]

# ---------------------------------------------------------------- quantised attention, experts
_QA = ("x", "w", "b", "s", "ws", "mask", "z", "wz", "past")


def quantised_attention(title: str, attrs: dict[str, Any] | None = None, **kwargs: Any) -> Case:
    operands = {
        "x": data("B S 10", dtype="uint8", low=0, high=255),
        "w": weight("10 48", dtype="int8", low=-128, high=127),
        "b": weight("48"),
        "s": given(0.01, "float32", constant=True),
        "ws": given(0.02, "float32", constant=True),
        "z": given(128, "uint8", constant=True),
        "wz": given(0, "int8", constant=True),
    }
    return Case("QAttention", {"num_heads": 2, **(attrs or {})}, title=title, order=_QA, **{**operands, **kwargs})


def experts(
    title: str,
    attrs: dict[str, Any] | None = None,
    *,
    bits: int = 0,
    block: int = 0,
    glu: bool = False,
    zeros: bool = False,
    dtype: str = "float32",
    **kwargs: Any,
) -> Case:
    e, d, i = 4, 96, 32
    wide = 2 * i if glu else i

    def stored(shape: tuple[int, ...]) -> Given:
        return given(_RNG.integers(0, 256, (*shape[:-1], -(-shape[-1] * bits // 8))), "uint8", constant=True)

    def layer(number: int, n: int, k: int) -> dict[str, Any]:
        bias = given(_RNG.standard_normal((e, n)), dtype, constant=True)
        if not bits:
            return {
                f"w{number}": given(_RNG.standard_normal((e, n, k)) * 0.2, dtype, constant=True),
                f"b{number}": bias,
            }
        scales = (e, n, k // block) if block else (e, n)
        return {
            f"w{number}": stored((e, n, k)),
            f"s{number}": given(_RNG.uniform(0.5, 1, scales) * 0.4 / (1 << bits), dtype, constant=True),
            f"b{number}": bias,
            **({f"z{number}": stored(scales)} if zeros else {}),
        }

    named: dict[str, Any] = {"k": 2}
    if glu:
        named |= {"activation_type": "swiglu", "swiglu_fusion": 1, "swiglu_limit": 7.0}
        named |= {"activation_alpha": 1.702, "activation_beta": 1.0}
    if bits:
        named |= {"expert_weight_bits": bits, **({"block_size": block} if block else {})}
    named |= attrs or {}
    given_ = {"x": data(f"S {d}", dtype=dtype), "r": data(f"S {e}", dtype=dtype)}
    given_ |= {**layer(1, wide, d), **layer(2, d, i), **kwargs}
    is_rounded = block and (bits == 8 or named.get("accuracy_level") == 4)  # not by ONNX Runtime on every CPU
    return Case(
        "QMoE" if bits else "MoE",
        named,
        title=title,
        order=("x", "r", "w1", "s1", "b1", "w2", "s2", "b2", "", "", "", "z1", "z2", "", "weights") if bits else (),
        rtol=2e-2 if is_rounded else 2e-3 if dtype == "float16" else 2e-4,
        atol=5e-2 if is_rounded else 2e-3 if dtype == "float16" else 2e-5,
        **given_,
    )


_STORED_EXPERTS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    *((f"{b} bits in blocks", {}, {"bits": b, "block": 32}) for b in (2, 4, 8)),
    *((f"{b} bits in blocks, zero points", {}, {"bits": b, "block": 32, "zeros": True}) for b in (2, 4, 8)),
    *((f"{b} bits by row", {}, {"bits": b}) for b in (2, 4, 8)),
    *((f"{b} bits by row, zero points", {}, {"bits": b, "zeros": True}) for b in (2, 4, 8)),
    ("4 bits, sources of 8 bits", {"accuracy_level": 4}, {"bits": 4, "block": 16}),
    ("4 bits by row, level 4", {"accuracy_level": 4}, {"bits": 4}),
    ("4 bits, float16", {}, {"bits": 4, "block": 32, "dtype": "float16"}),
    ("equal scores", {}, {"bits": 4, "r": given(np.zeros((S, 4)), "float32", "S 4")}),
    (
        "weights of the router that are all zero",
        {},
        {"bits": 4, "weights": given([[1, 2, 0, 3]] * (S - 1) + [[0] * 4], "float32", "S 4")},
    ),
]
OTHERS = [
    quantised_attention("plain"),
    quantised_attention(
        "causal, mask", {"unidirectional": 1}, mask=given([[1, 1, 1, 0, 0], [1, 1, 1, 1, 0]], "int32", "B S")
    ),
    quantised_attention("past", outputs=("y", "now"), past=data("2 B 2 P 8")),
    quantised_attention(
        "scales of columns", ws=weight("48", low=0.01, high=0.03), wz=given(np.zeros(48), "int8", constant=True)
    ),
    experts("swiglu", {"normalize_routing_weights": 1}, glu=True),
    experts("swiglu, shares of all", glu=True),
    experts("relu"),
    experts("gelu", {"activation_type": "gelu"}),
    experts("silu", {"activation_type": "silu", "normalize_routing_weights": 1}),
    experts("float16", dtype="float16"),
    experts("equal scores", r=given(np.zeros((S, 4)), "float32", "S 4")),
    *(
        experts(title, {"normalize_routing_weights": 1, **attrs}, glu=True, **options)
        for title, attrs, options in _STORED_EXPERTS
    ),
    experts("weights of the router", bits=4, weights=data("S 4", dtype="float32", low=0.1, high=1)),
]


def lstm(title: str, *, per_gate: bool = False, directions: int = 1, hidden: int = 6, zero: int = 0) -> Case:
    gates = 4 * hidden
    scales = (directions, gates) if per_gate else (directions,)

    dtype, numbers = ("uint8", (0, 256)) if zero else ("int8", (-127, 128))

    def weights(inputs: int, scale: str, point: str) -> dict[str, Given]:
        return {
            "wr"[inputs == hidden]: given(_RNG.integers(*numbers, (directions, inputs, gates)), dtype, constant=True),
            scale: given(_RNG.uniform(0.002, 0.004, scales), "float32", constant=True),
            point: given(np.full(scales, zero), dtype, constant=True),
        }

    return Case(
        "DynamicQuantizeLSTM",
        {"hidden_size": hidden, **({"direction": "bidirectional"} if directions == 2 else {})},
        title=title,
        order=("x", "w", "r", "b", "lens", "h", "c", "p", "ws", "wz", "rs", "rz"),
        outputs=("y", "yh", "yc"),
        x=data("T B 5"),
        b=weight(f"{directions} {2 * gates}"),
        rtol=0.05,
        atol=0.03,
        **weights(5, "ws", "wz"),
        **weights(hidden, "rs", "rz"),
    )


OLDER = [
    lstm("one scale"),
    lstm("scales of gates", per_gate=True),
    lstm("both directions", directions=2),
    lstm("bytes around 128", directions=2, per_gate=True, zero=128),
    lstm("bytes around 100, which are none of int8", zero=100),
    Case("Inverse", x=given([[[0.0, 2.0], [1.0, 3.0]], [[4.0, 1.0], [2.0, 5.0]]], "float32", "B S S")),
    Case(
        "NGramRepeatBlock",
        {"ngram_size": 3},
        x=given([[1, 2, 3, 1, 2], [4, 4, 4, 4, 4]], "int64", "B S"),
        s=data("B 6"),
    ),
    Case("UnfoldTensor", {"size": 3, "step": 2, "dim": 1}, x=data("B S 6")),
    Case("CDist", {"metric": "euclidean"}, a=data("S 6"), b=data("T 6")),
    Case("CDist", {"metric": "sqeuclidean"}, a=data("S 6"), b=weight("3 6")),
    *(
        Case(
            "GridSample",
            {"mode": mode, "padding_mode": padding},
            x=data("B 3 5 6"),
            g=data("B 4 7 2", dtype="float32", low=-1, high=1),
        )
        for mode, padding in (("bilinear", "zeros"), ("nearest", "border"))
    ),
    Case("Trilu", {"upper": 0}, x=data("B 5 7")),
    Case("ExpandDims", x=data("B S"), axis=given(-1, "int32", constant=True)),
    Case("Range", a=given(2.0, "float32", constant=True), b=given(9.0, "float32", constant=True)),
    Case("Pad", x=data("B 5"), p=given([0, 1, 0, 2], "int64", constant=True)),
    Case("GatherND", x=data("B 5 6"), i=given([[0, 1], [1, 4]], "int64")),
    Case("Unique", outputs=("y", "i", "n"), x=given([3.0, 1.0, 3.0, 2.0, 1.0], "float32", constant=True)),
    Case("QuickGelu", {"alpha": 1.0}, x=X),
    Case(
        "CausalConvWithState",
        {"activation": "none", "ndim": 1},
        order=("x", "w", "b", "past"),
        outputs=("y", "now"),
        title="past",
        x=data("B 8 S"),
        w=weight("8 1 3"),
        past=data("B 8 2"),
    ),
    Case(
        "CausalConvWithState",
        {"activation": "silu", "ndim": 1},
        order=("x", "w", "b", "past"),
        outputs=("y", "now"),
        title="bias",
        x=data("B 8 S"),
        w=weight("8 1 4"),
        b=weight("8"),
    ),
    *(
        Case(
            "MatMulBnb4",
            {"K": 64, "N": 24, "block_size": 32, "quant_type": kind},
            x=data("B S 64"),
            q=given(_RNG.integers(0, 256, 24 * 32), "uint8", constant=True),
            s=given(_RNG.uniform(0.1, 0.2, 48), "float32", constant=True),
        )
        for kind in (0, 1)
    ),
    Case(
        "QLinearWhere",
        order=("c", "x", "xs", "xz", "y2", "ys", "yz", "zs", "zz"),
        c=data("B S", dtype="bool", low=0, high=2),
        x=data("B S", dtype="uint8", low=0, high=255),
        xs=given(0.02, "float32", constant=True),
        xz=given(120, "uint8", constant=True),
        y2=data("B S", dtype="uint8", low=0, high=255),
        ys=given(0.03, "float32", constant=True),
        yz=given(100, "uint8", constant=True),
        zs=given(0.025, "float32", constant=True),
        zz=given(110, "uint8", constant=True),
        atol=1,
    ),
]


#: operators of ONNX before version 7, which its package no longer describes
GONE = [
    Case("Affine", {"alpha": 1.5, "beta": 0.2}, domain="", opset=6, x=data("B 5")),
    Case("ImageScaler", {"scale": 0.5, "bias": [0.1, 0.2, 0.3]}, domain="", opset=6, x=data("B 3 4 5")),
    Case("ParametricSoftplus", {"alpha": 0.4, "beta": 1.7}, domain="", opset=6, x=data("B 5")),
    Case("Scale", {"scale": 2.5}, domain="", opset=6, x=data("B 5")),
    Case("ScaledTanh", {"alpha": 0.9, "beta": 1.3}, domain="", opset=6, x=data("B 5")),
]

CASES = [*NORMS, *PRODUCTS, *STORED, *OTHERS, *OLDER, *GONE]


@pytest.mark.native
@pytest.mark.parametrize(("case", "where"), placed(CASES))
def test_contrib(case: Case, where: str) -> None:
    case.check(where)
