"""Quantising and dequantising: ties, saturation, zero points; to the last bit."""

from __future__ import annotations

import numpy as np
from tvm import relax

from tests.harness import Case, accept, const, data, refuse, table_tests
from tests.tvm_version import quantised_number

op, nn = relax.op, relax.op.nn
RANGES = {"int8": (-128, 127), "uint8": (0, 255)}


def spread(v, axis, rank):
    return v.reshape([-1 if i == axis % rank else 1 for i in range(rank)]) if np.size(v) > 1 else np.reshape(v, ())


def quantize(dtype, axis=-1):
    def reference(x, scale, zero):
        scale, zero = (spread(v, axis, x.ndim) for v in (scale, zero))
        quotient = (x.astype("float32") / scale.astype("float32")).astype("float64")
        return np.clip(np.round(quotient) + zero, *RANGES[dtype]).astype(dtype)

    return lambda x, s, z: op.quantize(x, s, z, axis=axis, out_dtype=dtype), reference


def dequantize(axis=-1):
    def reference(x, scale, zero):
        scale, zero = (spread(v, axis, x.ndim) for v in (scale, zero))
        return (x.astype("int64") - zero) * scale

    return lambda x, s, z: op.dequantize(x, s, z, axis=axis, out_dtype="float32"), reference


def row(name, pair, *operands, **options):
    return accept(name, pair[0], *operands, reference=pair[1], **options)


def scales(*shape, make=const):
    return make(*shape, low=0.01, high=0.3)


def zeros(*shape, dtype="int8", make=const):
    return make(*shape, dtype=dtype, low=0 if dtype == "uint8" else -50, high=50)


#: halves, what saturates, and infinities
TIES = np.array(
    [0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5, 127.5, 254.5, 255.5, 1e9, -1e9, np.inf, -np.inf, -0.0, 0.49999997]
)
ONE = const(values=np.float32(1.0))

ACCEPT = [
    row(
        "quantize-a-number",
        quantize("uint8"),
        data(low=0, high=40),
        scales(1),
        zeros(1, dtype="uint8"),
        marks=quantised_number,
    ),
    row(
        "dequantize-a-number",
        dequantize(),
        data(dtype="int8", low=-9, high=9),
        scales(),
        zeros(),
        marks=quantised_number,
    ),
    *(
        row(
            f"quantize-{dtype}-{shape}",
            quantize(dtype),
            data(*shape, low=-20, high=20),
            scales(1),
            zeros(1, dtype=dtype),
        )
        for dtype in RANGES
        for shape in [(2, 6, 5, 7), (3, 17), (1,), (13, 1), (0, 3), (2, 3, 2, 3, 5)]
    ),
    *(
        row(f"quantize-ties-{dtype}-{zero}", quantize(dtype), data(values=TIES), ONE, const(values=zero, dtype=dtype))
        for dtype in RANGES
        for zero in (0, 1, 2, 127)
    ),
    *(
        row(
            f"quantize-channels-{dtype}-{axis}-{zero}",
            quantize(dtype, axis),
            data(2, 6, 5, 7, low=-20, high=20),
            scales((2, 6, 5, 7)[axis]),
            zeros((2, 6, 5, 7)[axis], dtype=dtype) if zero else const(values=np.zeros(1), dtype=dtype),
        )
        for dtype in RANGES
        for axis in (0, 1, -1)
        for zero in (False, True)
    ),
    row(
        "quantize-inputs",
        quantize("int8", 1),
        data(2, 6, 5, low=-20, high=20),
        scales(6, make=data),
        zeros(6, make=data),
    ),
    *(
        row(
            f"dequantize-{dtype}-{shape}",
            dequantize(),
            data(*shape, dtype=dtype, low=RANGES[dtype][0], high=RANGES[dtype][1]),
            scales(1),
            zeros(1, dtype=dtype),
        )
        for dtype in RANGES
        for shape in [(2, 6, 5, 7), (3, 17), (1,), (0, 3)]
    ),
    *(
        row(
            f"dequantize-channels-{axis}-{make.__name__}",
            dequantize(axis),
            data(2, 6, 5, 7, dtype="int8", low=-128, high=127),
            scales((2, 6, 5, 7)[axis], make=make),
            zeros((2, 6, 5, 7)[axis], make=make),
        )
        for axis in (0, 1, -1)
        for make in (const, data)
    ),
    row(
        "dequantize-symmetric",
        dequantize(0),
        data(6, 5, dtype="int8", low=-128),
        scales(6),
        const(values=0, dtype="int8"),
    ),
    row(
        "dequantize-bias",
        dequantize(0),
        data(17, dtype="int32", low=-1e9, high=1e9),
        scales(17),
        const(values=np.zeros(17), dtype="int32"),
    ),
]

REFUSE = [
    refuse("float16", "dtype float16", quantize("int8")[0], data(2, 3, dtype="float16"), ONE, zeros(1)),
    refuse(
        "to-int16",
        "quantize to int16",
        lambda x, s, z: op.quantize(x, s, z, out_dtype="int16"),
        *(data(2, 3), ONE, zeros(1)),
    ),
    refuse(
        "to-float16",
        "dequantize to float16",
        lambda x, s, z: op.dequantize(x, s, z, out_dtype="float16"),
        *(data(2, 3, dtype="int8"), ONE, zeros(1)),
    ),
    refuse(
        "int32-zero",
        "int32 with a zero point",
        dequantize()[0],
        data(2, 3, dtype="int32"),
        ONE,
        const(values=3, dtype="int32"),
    ),
]

test_accepted, test_refused = table_tests(ACCEPT, REFUSE)


def test_one_primitive_each():
    whole, zero = scales(1), const(values=3, dtype="uint8")
    Case(quantize("uint8")[0], (data(2, 6, 5, 7), whole, zero)).becomes(("binary", ["round", "linear"]))
    case = Case(dequantize()[0], (data(2, 6, 5, 7, dtype="uint8", low=0), whole, zero))
    case.becomes("reorder", ("binary", ["mul"]))


def test_a_quantised_network_is_one_region():
    def network(x, w, s, z, ws, wz):
        def through(y):
            return op.dequantize(op.quantize(y, s, z, out_dtype="uint8"), s, z)

        y = nn.relu(nn.conv2d(through(x), op.dequantize(w, ws, wz, axis=0), padding=1))
        return through(nn.max_pool2d(through(y), (2, 2), (2, 2)))

    def reference(x, w, s, z, ws, wz):
        def through(y):
            return dequantize()[1](quantize("uint8")[1](y, s, z), s, z)

        x, w = np.pad(through(x), [(0, 0), (0, 0), (1, 1), (1, 1)]), dequantize(0)[1](w, ws, wz)
        windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))
        y = through(np.maximum(np.einsum("nihwyx,oiyx->nohw", windows, w), 0))
        return through(y.reshape(1, 5, 4, 2, 4, 2).max((3, 5)))

    case = Case(
        network,
        (
            data(1, 3, 8, 8),
            const(5, 3, 3, 3, dtype="int8", low=-128),
            const(values=np.float32(0.0625)),
            const(values=128, dtype="uint8"),
            const(values=np.full(5, 2.0**-7)),
            const(values=np.zeros(5), dtype="int8"),
        ),
        reference,
    )
    case.offloads().matches()
    assert len(case.regions) == 1
