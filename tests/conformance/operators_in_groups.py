"""More nodes: of detection, windows and norms, and ONNX Runtime's own."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.conformance.operators import Case, Input, c, f, i64, indexing, ordering, reductions


def _even_lrn(x: np.ndarray) -> np.ndarray:
    """Of one channel in front and two behind; ONNX's reference normalises as many channels as there are pictures."""
    squares = np.pad(x.astype("float64") ** 2, [(0, 0), (1, 2), (0, 0), (0, 0)])
    sums = sum(squares[:, i : i + x.shape[1]] for i in range(4))
    return (x / (1 + 1e-4 / 4 * sums) ** 0.75).astype("float32")


def detection() -> Iterator[Case]:
    """Boxes and regions of interest."""
    rng = np.random.default_rng(1)
    corners = rng.uniform(1, 10, (1, 20, 4)).astype("float32")
    corners[..., 2:] += corners[..., :2]
    scores = rng.uniform(-0.5, 1, (1, 2, 20)).astype("float32")
    most, overlap, least = c([20]), c([0.1], "float32"), c([0.6], "float32")
    limits: dict[str, list[Input]] = {
        "all": [most, overlap, least],
        "none": [],
        "most": [most],
        "no overlap": [most, "", least],
        "no score": [most, overlap],
        "two": [c(2), c(0.3, "float32"), c(-1, "float32")],
        "zero": [c([0]), overlap, least],
    }
    for name, given in limits.items():
        yield Case(f"NonMaxSuppression {name}", "NonMaxSuppression", [corners, scores, *given], opset=11, judge="ort")
    centred = np.concatenate([corners[..., :2], corners[..., 2:] / 4], -1)
    yield Case(
        "NonMaxSuppression centred",
        "NonMaxSuppression",
        [centred, scores, most, c([0.3], "float32")],
        {"center_point_box": 1},
        11,
    )
    flipped = corners[..., [2, 3, 0, 1]]
    yield Case(
        "NonMaxSuppression flipped", "NonMaxSuppression", [flipped, scores, most, overlap], opset=11, judge="ort"
    )
    for limit, place in (("max_output", 2), ("iou", 3), ("score", 4)):
        inputs: list[Input] = [corners, scores, most, overlap, least]
        inputs[place] = np.asarray(inputs[place][0])
        yield Case(f"NonMaxSuppression given {limit}", "NonMaxSuppression", inputs, opset=11, judge="ort")
    picture, batch = f(2, 3, 10, 12), i64(1, 0, 1, 0, 1)
    # with half_pixel the last two have no samples
    boxes = np.array([[4, 4, 12, 12], [0.5, 1, 3, 2.2], [-3, 2, 30, 25], [9, 8, 4, 2], [3, 3, 3, 3]], "float32")
    for transform in ("half_pixel", "output_half_pixel"):
        for scale in (1.0, 0.5):
            for ratio in (0, 2):
                how = {
                    "coordinate_transformation_mode": transform,
                    "spatial_scale": scale,
                    "sampling_ratio": ratio,
                    "output_height": 2,
                    "output_width": 3,
                }
                yield Case(
                    f"RoiAlign {transform} {scale} {ratio}", "RoiAlign", [picture, boxes, batch], how, 16, judge="ort"
                )
    yield Case("RoiAlign default 16", "RoiAlign", [picture, boxes, batch], {"spatial_scale": 0.5}, 16, judge="ort")
    yield Case("RoiAlign default 10", "RoiAlign", [picture, boxes, batch], {"spatial_scale": 0.5}, 10, judge="ort")
    yield Case("RoiAlign max", "RoiAlign", [picture, boxes, batch], {"mode": "max"}, 16, judge="ort")
    regions = np.array([[0, 1, 1, 6, 8], [1, 0, 2, 11, 9], [1, 3, 3, 3, 3]], "float32")
    for scale in (1.0, 0.5):
        yield Case(
            f"MaxRoiPool {scale}",
            "MaxRoiPool",
            [picture, regions],
            {"pooled_shape": [3, 2], "spatial_scale": scale},
            judge="ort",
        )
    grid = np.random.default_rng(2).uniform(-1.3, 1.3, (2, 3, 4, 2)).astype("float32")
    for mode in ("linear", "nearest", "cubic"):
        for padding in ("zeros", "border", "reflection"):
            for corner in (0, 1):
                how = {"mode": mode, "padding_mode": padding, "align_corners": corner}
                yield Case(f"GridSample {mode} {padding} {corner}", "GridSample", [picture, grid], how, 20, judge="ort")


def windows() -> Iterator[Case]:
    """Pooling, convolutions, norms."""
    x = f(1, 4, 9, 8)
    for p in (1, 2, 3):
        how = {"kernel_shape": [3, 2], "p": p}
        yield Case(f"LpPool {p}", "LpPool", [x], {**how, "strides": [2, 2], "pads": [1, 0, 1, 1]})
        yield Case(f"LpPool ceil {p}", "LpPool", [x], {**how, "strides": [2, 3], "ceil_mode": 1}, judge="ort")
        yield Case(f"LpPool dilated {p}", "LpPool", [x], {**how, "dilations": [2, 3]})
        yield Case(f"LpPool same {p}", "LpPool", [x], {**how, "auto_pad": "SAME_LOWER", "strides": [2, 2]}, judge="ort")
        yield Case(
            f"GlobalLpPool {p}",
            "GlobalLpPool",
            [x],
            {"p": p},
            judge=lambda v, q=p: (
                (np.abs(v.astype("f8")) ** q).sum((2, 3), keepdims=True).astype("f4") ** np.float32(1 / q)
            ),
        )
    for op in ("MaxPool", "AveragePool"):
        how = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
        yield Case(f"{op} ceil", op, [x], {**how, "ceil_mode": 1}, 19, judge="ort")
        yield Case(f"{op} dilated", op, [x], {"kernel_shape": [2, 3], "dilations": [2, 2]}, 19)
    yield Case(
        "AveragePool counted",
        "AveragePool",
        [x],
        {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], "ceil_mode": 1, "count_include_pad": 1},
        19,
    )
    yield Case(
        "Conv dilated",
        "Conv",
        [x, c(f(6, 2, 3, 2))],
        {"group": 2, "dilations": [2, 3], "strides": [1, 2], "pads": [1, 0, 2, 1]},
        11,
    )
    yield Case("LRN", "LRN", [f(1, 6, 3, 3)], {"size": 3, "alpha": 0.2, "beta": 0.6, "bias": 1.5}, 13, judge="ort")
    yield Case("LRN even", "LRN", [f(1, 6, 3, 3)], {"size": 4}, 13, judge=_even_lrn)
    yield Case("MeanVarianceNormalization", "MeanVarianceNormalization", [f(2, 3, 4)], {"axes": [1, -1]}, 13)
    yield Case("SpaceToDepth", "SpaceToDepth", [f(1, 2, 4, 6)], {"blocksize": 2}, 13)
    yield Case("DepthToSpace", "DepthToSpace", [f(1, 8, 2, 3)], {"blocksize": 2, "mode": "CRD"}, 13)
    for opset in (11, 13):
        for op in ("Softmax", "LogSoftmax", "Hardmax"):
            yield Case(f"{op} {opset}", op, [f(2, 3, 4)], {"axis": 1}, opset, judge="ort")
    yield Case(
        "Upsample 9", "Upsample", [f(1, 2, 3, 4), c([1, 1, 2, 3], "float32")], {"mode": "linear"}, 9, judge="ort"
    )
    yield Case(
        "Upsample 7", "Upsample", [f(1, 2, 3, 4)], {"mode": "nearest", "scales": [1.0, 1.0, 2.0, 1.5]}, 7, judge="ort"
    )
    yield Case(
        "Gemm", "Gemm", [f(3, 2), c(f(4, 3)), c(f(1))], {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0}, 13
    )
    yield Case("Slice empty", "Slice", [f(7, 3), c([5]), c([2])], opset=13)
    yield Case(
        "Slice backwards", "Slice", [f(7, 3), c([-1, 3]), c([-(2**63) + 1, 0]), c([0, 1]), c([-2, -1])], opset=13
    )


def contrib() -> Iterator[Case]:
    """ONNX Runtime's own operators."""
    ms = {"domain": "com.microsoft", "judge": "ort"}
    x, skip, gamma, beta, bias = f(2, 3, 8), f(2, 3, 8, seed=2), f(8), f(8, seed=2), f(8, seed=3)
    for opset in (17, 20):
        yield Case(f"Gelu {opset}", "Gelu", [x], opset=opset, **ms)
        yield Case(f"FastGelu {opset}", "FastGelu", [x], opset=opset, **ms)
        yield Case(f"FastGelu bias {opset}", "FastGelu", [x, c(bias)], opset=opset, **ms)
        yield Case(f"BiasGelu {opset}", "BiasGelu", [x, c(bias)], opset=opset, **ms)
        yield Case(f"QuickGelu {opset}", "QuickGelu", [x], {"alpha": 1.3}, opset=opset, **ms)
    for epsilon in (1e-12, 0.1):
        how = {"epsilon": epsilon}
        yield Case(
            f"SkipLayerNormalization {epsilon}",
            "SkipLayerNormalization",
            [x, skip, c(gamma), c(beta), c(bias)],
            how,
            **ms,
        )
        yield Case(f"SkipLayerNormalization bare {epsilon}", "SkipLayerNormalization", [x, skip, c(gamma)], how, **ms)
        yield Case(
            f"SkipSimplified {epsilon}", "SkipSimplifiedLayerNormalization", [x, skip, c(gamma), c(bias)], how, **ms
        )
    ids, segments = np.array([[1, 3, 0], [2, 2, 4]], "int32"), np.array([[0, 0, 1], [1, 0, 1]], "int32")
    tables: list[Input] = [c(f(5, 8)), c(f(4, 8)), c(f(2, 8)), c(gamma), c(beta)]
    mask = np.array([[1, 1, 0], [1, 1, 1]], "int32")
    yield Case(
        "EmbedLayerNormalization",
        "EmbedLayerNormalization",
        [ids, segments, *tables],
        {"epsilon": 0.01},
        outputs=2,
        **ms,
    )
    yield Case(
        "EmbedLayerNormalization mask", "EmbedLayerNormalization", [ids, segments, *tables, mask], outputs=2, **ms
    )
    places = np.array([[3, 1, 0], [0, 0, 2]], "int32")
    yield Case(
        "EmbedLayerNormalization places",
        "EmbedLayerNormalization",
        [ids, segments, *tables, mask, places],
        outputs=2,
        **ms,
    )
    yield Case(
        "EmbedLayerNormalization no segments",
        "EmbedLayerNormalization",
        [ids, "", *tables[:2], "", *tables[3:]],
        outputs=2,
        **ms,
    )
    yield Case(
        "EmbedLayerNormalization sum",
        "EmbedLayerNormalization",
        [ids, segments, *tables],
        outputs=3,
        **ms,
    )
    weights, biases = c(f(8, 24)), c(f(24))
    yield Case("Attention", "Attention", [x, weights, biases], {"num_heads": 2}, **ms)
    yield Case(
        "Attention mask",
        "Attention",
        [x, weights, biases, mask],
        {"num_heads": 2},
        **ms,
    )
    square = np.array([[[1, 0, 0], [1, 1, 0], [1, 1, 1]]] * 2, "int32")
    yield Case(
        "Attention square mask",
        "Attention",
        [x, weights, biases, square],
        {"num_heads": 4},
        **ms,
    )
    yield Case("Attention bias", "Attention", [x, weights, biases, "", "", f(2, 2, 3, 3)], {"num_heads": 2}, **ms)
    yield Case(
        "Attention mask and bias", "Attention", [x, weights, biases, mask, "", f(2, 2, 3, 3)], {"num_heads": 2}, **ms
    )
    yield Case(
        "Attention filter",
        "Attention",
        [x, weights, biases, mask],
        {"num_heads": 2, "mask_filter_value": -3.0},
        **ms,
    )
    yield Case(
        "Attention scale",
        "Attention",
        [x, weights, biases],
        {"num_heads": 2, "scale": 0.3},
        **ms,
    )
    yield Case(
        "Attention causal",
        "Attention",
        [x, weights, biases],
        {"num_heads": 2, "unidirectional": 1},
        **ms,
    )
    yield Case(
        "Attention lengths",
        "Attention",
        [x, weights, biases, np.array([2, 3], "int32")],
        {"num_heads": 2},
        **ms,
    )
    yield Case(
        "Attention sizes",
        "Attention",
        [x, c(f(8, 20)), c(f(20))],
        {"num_heads": 2, "qkv_hidden_sizes": [8, 8, 4]},
        **ms,
    )
    for left, right in (("int16", "int16"), ("uint16", "int16"), ("uint16", "uint16")):
        a, b = (np.arange(6, dtype=t).reshape(s) * 1000 + 7 for t, s in ((left, (2, 3)), (right, (3, 2))))
        out = "uint32" if left == right == "uint16" else "int32"
        yield Case(
            f"MatMulInteger16 {left} {right}",
            "MatMulInteger16",
            [a, b],
            domain="com.microsoft",
            judge=lambda p, q, o=out: p.astype(o) @ q.astype(o),
        )
    for dtype in ("uint8", "int8", "int16", "uint16"):
        zero = c(3, dtype)
        yield Case(f"QuantizeLinear {dtype}", "QuantizeLinear", [f(3, 4) * 9, c(0.1, "float32"), zero], **ms)
        yield Case(
            f"DequantizeLinear {dtype}",
            "DequantizeLinear",
            [np.arange(12, dtype=dtype).reshape(3, 4), c(0.1, "float32"), zero],
            **ms,
        )
    scales, zeros = c([0.1, 0.2, 0.3], "float32"), c([1, 2, 3], "uint8")
    yield Case("QuantizeLinear axis", "QuantizeLinear", [f(3, 4), scales, zeros], {"axis": 0}, **ms)
    yield Case(
        "DequantizeLinear axis",
        "DequantizeLinear",
        [np.arange(12, dtype="uint8").reshape(3, 4), scales, zeros],
        {"axis": -2},
        **ms,
    )
    yield Case("FusedMatMul", "FusedMatMul", [f(2, 4, 3), f(2, 5, 4)], {"transA": 1, "transB": 1, "alpha": 0.3}, **ms)


GROUPS = (reductions, ordering, indexing, detection, windows, contrib)
