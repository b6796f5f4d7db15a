"""Operators for attention beside ONNX Runtime: every form of masks, pasts and caches."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.reference
import pytest

from .node_cases import SIZES, WHERE, Case, data, given, placed, weight

MS = "com.microsoft"
B, S, T, P = SIZES["B"], SIZES["S"], SIZES["T"], SIZES["P"]
_RNG = np.random.default_rng(3)
ANGLES = np.arange(64)[:, None] / 100 ** (np.arange(8)[None] / 8)


def tables(columns: int) -> dict[str, Any]:
    """Cosines and sines of 64 positions."""
    return {
        "cos": given(np.cos(ANGLES[:, :columns]), "float32", constant=True),
        "sin": given(np.sin(ANGLES[:, :columns]), "float32", constant=True),
    }


def mask(*dims: str | int, dtype: str = "int32") -> Any:
    """A mask in which each row keeps something."""
    shape = [d if isinstance(d, int) else SIZES[d] for d in dims]
    kept = _RNG.random(shape) > 0.4
    kept[..., 0] = True
    return given(kept, dtype, " ".join(map(str, dims)))


# ---------------------------------------------------------------- ai.onnx
_ONNX = ("q", "k", "v", "mask", "pk", "pv", "valid")


def onnx_attention(title: str, attrs: dict[str, Any] | None = None, *, opset: int = 23, **kwargs: Any) -> Case:
    return Case("Attention", attrs, domain="", opset=opset, title=title, order=_ONNX, **kwargs)


FOUR = {"q": data("B 4 S 8"), "k": data("B 2 T 8"), "v": data("B 2 T 6")}
PAST = {"pk": data("B 2 P 8"), "pv": data("B 2 P 6")}
THREE = {"q": data("B S 32"), "k": data("B T 16"), "v": data("B T 12")}
FLAT = {"q_num_heads": 4, "kv_num_heads": 2}
PRESENT = ("y", "k_now", "v_now")
ONNX = [
    onnx_attention("plain, grouped heads", **FOUR),
    onnx_attention("rank 3", FLAT, **THREE),
    onnx_attention("scale", {"scale": 0.3}, **FOUR),
    onnx_attention("causal", {"is_causal": 1}, **FOUR),
    onnx_attention("causal, past", {"is_causal": 1}, outputs=PRESENT, **FOUR, **PAST),
    onnx_attention("past, rank 3", FLAT, outputs=PRESENT, **THREE, **PAST),
    onnx_attention("bool mask of 2 dims", mask=mask("S", "T", dtype="bool"), **FOUR),
    onnx_attention("bool mask of 4 dims", mask=mask("B", 1, "S", "T", dtype="bool"), **FOUR),
    onnx_attention("bool mask and causal", {"is_causal": 1}, mask=mask("S", "T", dtype="bool"), **FOUR),
    onnx_attention("mask to add", mask=data("B 4 S T"), **FOUR),
    onnx_attention("softcap, then mask", {"softcap": 1.5}, mask=data("S T"), **FOUR),
    onnx_attention(
        "valid keys",
        opset=24,
        q=data("B 4 S 8"),
        k=data("B 2 T 8"),
        v=data("B 2 T 8"),
        valid=given([7, 5], "int64", "B"),
    ),
    onnx_attention(
        "valid keys, causal",
        {"is_causal": 1},
        opset=24,
        q=data("B 4 M 8"),
        k=data("B 2 T 8"),
        v=data("B 2 T 8"),
        valid=given([7, 4], "int64", "B"),
    ),
    *(
        onnx_attention(
            f"scores {mode}",
            {"softcap": 1.5, "qk_matmul_output_mode": mode},
            outputs=("y", "", "", "scores"),
            mask=data("S T"),
            **FOUR,
        )
        for mode in range(4)
    ),
]

# ---------------------------------------------------------------- MultiHeadAttention and Attention
_MHA = ("q", "k", "v", "bias", "mask", "add", "pk", "pv", "before")
TWO = {"q": data("B S 16"), "k": data("B T 16"), "v": data("B T 16")}
SELF = {"q": data("B S 16"), "k": data("B S 16"), "v": data("B S 16")}
BEFORE = {"pk": data("B 2 P 8"), "pv": data("B 2 P 8")}


def mha(title: str, attrs: dict[str, Any] | None = None, **kwargs: Any) -> Case:
    return Case("MultiHeadAttention", {"num_heads": 2, **(attrs or {})}, title=title, order=_MHA, **kwargs)


MULTI = [
    mha("plain", **TWO),
    mha("scale", {"scale": 0.7}, **TWO),
    mha("values of another width", q=data("B S 16"), k=data("B T 16"), v=data("B T 12")),
    mha("bias", bias=weight("48"), **TWO),
    mha("past", outputs=PRESENT, **SELF, **BEFORE),
    mha("causal", {"unidirectional": 1}, **SELF),
    mha("causal, past", {"unidirectional": 1}, outputs=PRESENT, **SELF, **BEFORE),
    mha("mask of keys", mask=mask("B", "T"), **TWO),
    mha("mask of keys, filter", {"mask_filter_value": -3.0}, mask=mask("B", "T"), **TWO),
    mha("lengths", mask=given([7, 3], "int32", "B"), **TWO),
    mha("mask of rows and keys", mask=mask("B", "S", "T"), **TWO),
    mha("bias of scores", add=data("1 2 S T"), **TWO),
    mha("bias of scores for each sample", add=data("B 2 S T"), mask=mask("B", "T"), **TWO),
    mha("keys and values with heads", q=data("B S 16"), k=data("B 2 T 8"), v=data("B 2 T 8")),
    *(
        mha(
            f"in a buffer, causal {causal}",
            {"unidirectional": causal},
            outputs=PRESENT,
            q=data("B 1 16"),
            k=data("B 1 16"),
            v=data("B 1 16"),
            pk=data("B 2 L 8"),
            pv=data("B 2 L 8"),
            before=given([4], "int32"),
            compared=lambda arrays: [arrays[0], arrays[1][:, :, :5], arrays[2][:, :, :5]],
        )
        for causal in (0, 1)
    ),
    mha("scores", outputs=("y", "", "", "scores"), floats=("scores",), **TWO),
]
_MS = ("x", "w", "b", "mask", "past", "add")


def attention(title: str, attrs: dict[str, Any] | None = None, *, wide: int = 48, **kwargs: Any) -> Case:
    operands = {"x": data("B S 10"), "w": weight(f"10 {wide}"), "b": weight(f"{wide}")}
    return Case("Attention", {"num_heads": 2, **(attrs or {})}, title=title, order=_MS, **{**operands, **kwargs})


PACKED = [
    attention("plain"),
    attention("scale", {"scale": 0.2}),
    attention("sizes", {"qkv_hidden_sizes": [16, 16, 8]}, wide=40),
    attention("causal", {"unidirectional": 1}),
    attention("mask of keys", mask=mask("B", "S")),
    attention("mask of keys, causal, filter", {"unidirectional": 1, "mask_filter_value": -5.0}, mask=mask("B", "S")),
    attention("lengths", mask=given([5, 2], "int32", "B")),
    attention("ends and starts", mask=given([5, 4, 1, 0], "int32"), x=data("2 S 10")),
    attention("mask of rows and keys", mask=mask("B", "S", "S")),
    attention("bias of scores", add=data("B 2 S S")),
    attention("past", outputs=("y", "now"), past=data("2 B 2 P 8")),
    attention("past, causal", {"unidirectional": 1}, outputs=("y", "now"), past=data("2 B 2 P 8")),
    attention("past and mask", outputs=("y", "now"), past=data("2 B 2 P 8"), mask=mask("B", "L")),
]

# ---------------------------------------------------------------- GroupQueryAttention
_GQA = ("q", "k", "v", "pk", "pv", "lens", "total", "cos", "sin", "pos", "add", "sink", "ks", "vs", "qn", "kn", "ql")


def gqa(
    title: str,
    rows: str,
    past: str | None,
    lengths: list[int],
    total: int,
    attrs: dict[str, Any] | None = None,
    *,
    packed: bool = False,
    width: int = 16,
    rotary: int = 0,
    batch: str = "B",
    outputs: tuple[str, ...] = PRESENT,
    valid: tuple[int, ...] = (),
    **kwargs: Any,
) -> Case:
    """Four heads of queries and two of keys; ``valid``: rows of each sequence that are no padding."""
    wide = {
        "q": data(f"{batch} {rows} {8 * width if packed else 4 * width}"),
        **({} if packed else {n: data(f"{batch} {rows} {2 * width}") for n in ("k", "v")}),
        **({} if past is None else {n: data(f"{batch} 2 {past} {width}") for n in ("pk", "pv")}),
        "lens": given(np.array(lengths) - 1, "int32", batch if not batch.isdigit() else None),
        "total": given([total], "int32", constant=kwargs.pop("known", True)),
        **(tables(rotary) if rotary else {}),
    }
    attrs = {"num_heads": 4, "kv_num_heads": 2, **({"do_rotary": 1} if rotary else {}), **(attrs or {})}

    def compared(arrays: list[np.ndarray]) -> list[np.ndarray]:
        y, *rest = arrays
        if valid:
            y = np.stack(
                [np.where(np.arange(y.shape[1])[:, None] < n, row, 0) for row, n in zip(y, valid, strict=True)]
            )
        reach = np.array(lengths)[:, None, None, None]
        now = [np.where(np.arange(a.shape[2])[None, None, :, None] < reach, a, 0) for a in rest[:2]]
        return [y, *now, *rest[2:]]

    return Case(
        "GroupQueryAttention", attrs, title=title, order=_GQA, outputs=outputs, compared=compared, **{**wide, **kwargs}
    )


GROUPED = [
    gqa("prompt", "S", "0", [5], 5, batch="1"),
    gqa("prompt without a past", "S", None, [5], 5, batch="1"),
    gqa("prompt, one output", "S", None, [5], 5, batch="1", outputs=("y",)),
    gqa("prompt, packed, rotary", "S", "0", [5], 5, batch="1", packed=True, rotary=8),
    gqa("prompt, pairs", "S", "0", [5], 5, {"rotary_interleaved": 1}, batch="1", rotary=8),
    gqa("prompt, some columns turn", "S", "0", [5], 5, batch="1", width=32, rotary=8),
    gqa("prompt of a batch, padded on the right", "S", "0", [5, 3], 5, rotary=8, valid=(5, 3)),
    gqa("prompt, the past is ignored", "S", "6", [5], 5, batch="1", rotary=8),
    gqa("one row behind a past", "1", "P", [5, 3], 5, rotary=8),
    gqa("one row in a buffer", "1", "L", [7, 4], 7, rotary=8),
    gqa("rows behind a past", "M", "6", [9], 9, batch="1", rotary=8),
    gqa("rows in a buffer", "M", "12", [9], 9, batch="1", rotary=8),
    gqa("prompt in a buffer", "S", "12", [5], 5, batch="1", rotary=8),
    gqa("window", "S", "0", [5], 5, {"local_window_size": 3}, batch="1"),
    gqa("window, one row", "1", "8", [9], 9, {"local_window_size": 3}, batch="1"),
    gqa("softcap, scale", "S", "0", [5], 5, {"softcap": 2.0, "scale": 0.1}, batch="1"),
    gqa("bias", "S", "0", [5], 5, {"softcap": 2.0}, batch="1", add=data("1 4 S S")),
    gqa("bias, one row", "1", "8", [9], 9, batch="1", add=data("1 1 1 9")),
    gqa("sink", "S", "0", [5], 5, {"softcap": 2.0, "local_window_size": 3}, batch="1", sink=weight("4")),
    gqa("smooth softmax", "S", "0", [5], 5, {"smooth_softmax": 1}, batch="1"),
    gqa("not causal", "S", "0", [5], 5, {"causal": 0}, batch="1"),
    gqa("positions, prompt", "S", "0", [5], 5, batch="1", rotary=8, pos=given([[7, 0, 0, 0, 0]], "int64", "1 S")),
    gqa("positions, rows", "M", "6", [9], 9, batch="1", rotary=8, pos=given([[20, 3, 11]], "int64", "1 M")),
    gqa("shares", "S", "0", [5], 5, {"qk_output": 2}, batch="1", outputs=(*PRESENT, "scores")),
    gqa("shares in a buffer", "M", "12", [9], 9, {"qk_output": 2}, batch="1", outputs=(*PRESENT, "scores")),
    gqa("rows of each sequence", "S", "16", [9, 4], 16, rotary=8, ql=given([3, 4], "int32", "B"), valid=(3, 4)),
    gqa("the total length is an input", "1", "P", [5, 3], 5, rotary=8, known=False),
    *(
        gqa(
            f"cache of {bits} bits, {kind}",
            "S",
            None,
            [5],
            5,
            {"k_quant_type": kind, "v_quant_type": kind, "kv_cache_bit_width": bits},
            batch="1",
            pk=given(np.zeros((1, 2, 0, 16 * bits // 8)), "int8" if bits == 8 else "uint8"),
            pv=given(np.zeros((1, 2, 0, 16 * bits // 8)), "int8" if bits == 8 else "uint8"),
            **{
                n: given(
                    _RNG.uniform(0.02, 0.04, 1 if kind == "PER_TENSOR" else 32) * (1 if bits == 8 else 14),
                    "float32",
                    constant=True,
                )
                for n in ("ks", "vs")
            },
        )
        for bits in (8, 4)
        for kind in ("PER_TENSOR", "PER_CHANNEL")
    ),
]


# ---------------------------------------------------------------- rotary positions
def rotary(
    title: str, attrs: dict[str, Any] | None = None, *, domain: str = MS, opset: int = 23, **kwargs: Any
) -> Case:
    order = ("x", "pos", "cos", "sin") if domain else ("x", "cos", "sin", "pos")
    return Case("RotaryEmbedding", attrs, domain=domain, opset=opset, title=title, order=order, **kwargs)


AT = given([[0, 5, 2, 9, 1], [7, 8, 9, 3, 3]], "int64", "B S")
ROTARY = [
    *(
        rotary(
            f"{domain or 'ai.onnx'}, {rank} dims, pairs {pairs}, columns {used}",
            attrs,
            domain=domain,
            x=x,
            pos=AT,
            **tables(used // 2),
        )
        for domain in (MS, "")
        for pairs in (0, 1)
        for used in (16, 8)
        for rank, x in ((3, data("B S 64")), (4, data("B 4 S 16")))
        for attrs in [
            {
                "interleaved": pairs,
                **({"rotary_embedding_dim": 8} if used == 8 else {}),
                **({"num_heads": 4} if rank == 3 or (domain and used == 8) else {}),
            }
        ]
    ),
    rotary("the head size of the tables", x=data("B S 64"), pos=AT, **tables(8)),
    rotary("an offset", x=data("B S 64"), pos=given([4], "int64"), **tables(8)),
    rotary("rows of tables", {"num_heads": 4}, domain="", x=data("B S 64"), cos=data("B S 8"), sin=data("B S 8")),
]

CASES = [*ONNX, *MULTI, *PACKED, *GROUPED, *ROTARY]


@pytest.mark.native
@pytest.mark.parametrize(("case", "where"), placed(CASES))
def test_attention(case: Case, where: str) -> None:
    case.check(where)


_HIDDEN = np.ones((B, 1, S, T), bool)
_HIDDEN[0, 0, 2], _HIDDEN[1, 0, 0, 3:] = False, False


@pytest.mark.native
@pytest.mark.parametrize(("constant", "where"), [(False, "top"), (True, "top"), (False, "open")])
@pytest.mark.parametrize("added", [False, True], ids=["bool", "float"])
def test_rows_that_see_nothing_are_zero_and_nan_stays(added: bool, constant: bool, where: str) -> None:
    """ONNX's reference judges: of a row that sees something, the NaN of its query is its result."""
    kept = np.where(_HIDDEN, 0, -np.inf).astype("float32") if added else _HIDDEN
    case = onnx_attention(
        "hidden",
        outputs=("y", "", "", "shares"),
        attrs={"qk_matmul_output_mode": 3},
        mask=given(kept, str(kept.dtype), "B 1 S T", constant=constant),
        **FOUR,
    )
    case.inputs["q"].array[:, :, 1] = np.nan
    want = onnx.reference.ReferenceEvaluator(case.model()).run(None, case.feeds)
    for got, expected in zip(case.got(where), want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
    assert not np.asarray(want[0])[0, :, 2].any()


@pytest.mark.native
@pytest.mark.parametrize("count", [2, 3])
def test_packed_operands(count: int) -> None:
    """ONNX Runtime packs queries, keys and values, or the last two, for other devices than the CPU."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((B, S, 2, 8)).astype("float32") for _ in range(3))
    apart = mha("apart", **{n: given(a.reshape(B, S, 16), "float32") for n, a in zip("qkv", (q, k, v), strict=True)})
    packed = {
        2: {
            "q": given(q.reshape(B, S, 16), "float32", "B S 16"),
            "k": given(np.stack([k, v], 3), "float32", "B S 2 2 8"),
        },
        3: {"q": given(np.stack([q, k, v], 3), "float32", "B S 2 3 8")},
    }
    for where in WHERE:
        np.testing.assert_allclose(
            mha("packed", **packed[count]).got(where)[0], apart.expected()[0], rtol=1e-4, atol=1e-5
        )


@pytest.mark.native
@pytest.mark.parametrize(
    "size", [6, pytest.param(4, marks=pytest.mark.sweep), pytest.param(8, marks=pytest.mark.sweep)]
)
@pytest.mark.parametrize(
    "steps",
    [[5, 1, 1, 1, 3, 1], [12], pytest.param([3, 1, 1, 1, 1, 1, 1, 3], marks=pytest.mark.sweep)],
    ids=str,
)
def test_a_cache_of_the_window_only(size: int, steps: list[int]) -> None:
    """Twelve rows in steps, with a cache of ``size`` rows for a window of 4."""
    q, k, v = (
        np.random.default_rng(i).standard_normal((1, 12, n)).astype("float32") for i, n in enumerate((64, 32, 32))
    )
    past = [np.full((1, 2, size, 16), 7, "float32")] * 2
    done = 0
    for rows in steps:
        at = slice(done, done + rows)
        done += rows
        case = Case(
            "GroupQueryAttention",
            {"num_heads": 4, "kv_num_heads": 2, "local_window_size": 4, "sliding_window_cache": 1},
            order=_GQA,
            outputs=PRESENT,
            q=given(q[:, at], "float32", "1 S 64"),
            k=given(k[:, at], "float32", "1 S 32"),
            v=given(v[:, at], "float32", "1 S 32"),
            pk=given(past[0], "float32"),
            pv=given(past[1], "float32"),
            lens=given([done - 1], "int32"),
            total=given([done], "int32"),
        )
        held = done if done <= size else 4 + (done - size - 1) % (size - 4 + 1)
        got, want = case.got("open"), case.expected()
        np.testing.assert_allclose(got[0], want[0], rtol=1e-4, atol=1e-5)
        for mine, theirs in zip(got[1:], want[1:], strict=True):
            np.testing.assert_allclose(mine[:, :, :held], theirs[:, :, :held], rtol=1e-5)
        past = want[1:]
