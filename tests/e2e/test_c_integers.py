"""Integers in generated C wrap as their dtype says, in every expression, as NumPy computes them."""

from __future__ import annotations

import itertools
from functools import partial

import numpy as np
import pytest
import tvm
from tvm import relax, te, tirx

import tvm_byoc_dnnl as byoc
from tvm_byoc_dnnl.patterns.ccompiler.ops import compile_object
from tvm_byoc_dnnl.vendors.c_source import lower_tir

op = relax.op
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
RNG = np.random.default_rng(49)


def truncated(a, b):
    """The quotient towards zero; NumPy has only the one towards minus infinity."""
    quotient = np.floor_divide(a, b)
    return np.where((b != 0) & (quotient < 0) & (quotient * b != a), quotient + 1, quotient).astype(a.dtype)


def bits_of(dtype: str) -> int:
    return np.iinfo(dtype).bits


#: name → Relax's operator, and the same in NumPy
BINARY = {
    "add": (op.add, np.add),
    "subtract": (op.subtract, np.subtract),
    "multiply": (op.multiply, np.multiply),
    "divide": (op.divide, truncated),
    "floor_divide": (op.floor_divide, np.floor_divide),
    "floor_mod": (op.floor_mod, np.mod),
    "mod": (op.mod, np.fmod),
    "left_shift": (op.left_shift, np.left_shift),
    "right_shift": (op.right_shift, np.right_shift),
    "maximum": (op.maximum, np.maximum),
    "minimum": (op.minimum, np.minimum),
    "bitwise_and": (op.bitwise_and, np.bitwise_and),
    "bitwise_or": (op.bitwise_or, np.bitwise_or),
    "bitwise_xor": (op.bitwise_xor, np.bitwise_xor),
}
UNARY = {
    "abs": (op.abs, np.abs),
    "negative": (op.negative, np.negative),
    "bitwise_not": (op.bitwise_not, np.invert),
    "square": (op.square, np.square),
    "plus_own_half": (lambda a: op.add(a, op.right_shift(a, op.ones_like(a))), lambda a: a + (a >> a.dtype.type(1))),
    "sum": (lambda a: op.sum(a, [1]), lambda a: a.sum(1, dtype=a.dtype)),
    "prod": (lambda a: op.prod(a, [1]), lambda a: a.prod(1, dtype=a.dtype)),
    "cumsum": (lambda a: op.cumsum(a, 1), lambda a: a.cumsum(1, dtype=a.dtype)),
    "max": (lambda a: op.max(a, [1]), lambda a: a.max(1)),
}
#: what reads the result in the same kernel
TAILS = {
    "alone": (lambda v, _: v, lambda v, _: v),
    "float32": (lambda v, _: op.astype(v, "float32"), lambda v, _: v.astype("float32")),
    "int64": (lambda v, _: op.astype(v, "int64"), lambda v, _: v.astype("int64")),
    "less": (lambda v, a: op.less(v, op.max(a)), lambda v, a: v < a.max()),
    "greater": (lambda v, a: op.greater(v, op.min(a)), lambda v, a: v > a.min()),
    "halved": (lambda v, _: op.right_shift(v, op.ones_like(v)), lambda v, _: v >> v.dtype.type(1)),
    "dequantize": (
        lambda v, _: op.dequantize(v, relax.const(np.float32(0.5)), relax.const(np.int8(0)), axis=0),
        lambda v, _: v.astype("float32") * np.float32(0.5),
    ),
}


def numbers(dtype: str) -> np.ndarray:
    """All pairs of the numbers at which a dtype wraps, and some in between."""
    info = np.iinfo(dtype)
    special = [info.min, info.min + 1, info.max // 2, info.max - 1, info.max, 0, 1, 2, 3, 7, bits_of(dtype), 100]
    special += [-1, -2, -7] if info.min else []
    return np.array(special + RNG.integers(info.min, info.max, 3, dtype, endpoint=True).tolist(), dtype)


def operands(dtype: str) -> list[np.ndarray]:
    pairs = np.array(list(itertools.product(numbers(dtype), repeat=2)), dtype)
    return [np.ascontiguousarray(column.reshape(len(numbers(dtype)), -1)) for column in pairs.T]


def module(build, *dtypes_and_shapes) -> tvm.IRModule:
    params = [relax.Var(f"p{i}", relax.TensorType(s, t)) for i, (t, s) in enumerate(dtypes_and_shapes)]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            results = [builder.emit_output(builder.normalize(e)) for e in build(builder, *params)]
        builder.emit_func_output(relax.Tuple(results))
    return builder.get()


def computed(mod: tvm.IRModule, compiler: str, *inputs: np.ndarray, **settings) -> list[np.ndarray]:
    mod = byoc.partition(mod, compiler, policy=byoc.RegionPolicy(), strict=True, prepare=False, **settings)
    assert not [n for n in tvm.ir.Op.list_op_names() if n.startswith("relax.nn") and n in str(mod["main"])]
    return byoc.Runner(byoc.compile(mod, None, strict=True, prepare=False))(*inputs)


def scaffold() -> str:
    """A vendor that uses the public `generate_c` behind passes of TVM, as a scaffolded backend does."""
    name = "wrapping_npu"
    if name not in byoc.compilers():
        table = {o for o in tvm.ir.Op.list_op_names() if o.startswith("relax.")}
        named = [getattr(f, "__name__", "") for f, _ in [*BINARY.values(), *UNARY.values()]]
        extra = ["astype", "dequantize", "ones_like", "less", "greater", "sum", "prod", "cumsum", "max", "min", "add"]
        byoc.register_annotate_compiler(name, sorted(table & {f"relax.{n}" for n in [*named, *extra]}))
        byoc.register_target_hooks(
            name,
            tir_to_runtime=lambda mod, target: byoc.c_source_module(
                byoc.generate_c(mod, target), [gv.name_hint for gv in mod.get_global_vars()]
            ),
            target="c",
        )
    return name


FORMS = {
    "ccompiler": lambda: ("ccompiler", {"options": {"ccompiler": {"optimize": 1}}}),
    "source": lambda: ("ccompiler", {"options": {"ccompiler": {"source": True}}}),
    "scaffold": lambda: (scaffold(), {}),
}


@pytest.mark.parametrize(
    ("form", "dtype"),
    [
        *(("ccompiler", t) for t in ("int8", "uint8", "int16", "uint32", "int64")),
        *(("source", t) for t in ("int8", "uint16")),
        *(("scaffold", t) for t in ("int8", "int32")),
    ],
)
def test_operators_of_relax_wrap_before_each_kind_of_reader(form, dtype):
    """Every operator with two of the readers, in turn."""
    compiler, settings = FORMS[form]()
    a, b = operands(dtype)
    tails = [t for t in TAILS.values() if t is not TAILS["dequantize"] or bits_of(dtype) == 8]
    unary = {n: f for n, f in UNARY.items() if np.iinfo(dtype).min or n not in ("abs", "negative")}
    functions = [*((f, n, 2) for f, n in BINARY.values()), *((f, n, 1) for f, n in unary.values())]
    cases = [(*f, *tails[(i + j) % len(tails)]) for i, f in enumerate(functions) for j in (0, 3)]

    def build(builder, *params):
        return [tail(builder.emit(builder.normalize(f(*params[:n]))), params[0]) for f, _, n, tail, _ in cases]

    with np.errstate(all="ignore"):
        want = [tail(f(*(a, b)[:n]), a) for _, f, n, _, tail in cases]
    got = computed(module(build, (dtype, a.shape), (dtype, b.shape)), compiler, a, b, **settings)
    names = [n for n in [*BINARY, *unary] for _ in (0, 3)]
    for name, g, w in zip(names, got, want, strict=True):
        np.testing.assert_array_equal(np.asarray(g), w, err_msg=f"{name} of {dtype}", strict=True)


#: the same for TIR's nodes, of which Relax reaches only some
NODES = {
    "add": (lambda a, b: a + b, lambda a, b: a + b),
    "sub": (lambda a, b: a - b, lambda a, b: a - b),
    "mul": (lambda a, b: a * b, lambda a, b: a * b),
    "truncdiv": (tirx.truncdiv, truncated),
    "truncmod": (tirx.truncmod, np.fmod),
    "floordiv": (tirx.floordiv, np.floor_divide),
    "floormod": (tirx.floormod, np.mod),
    "shl": (lambda a, b: a << b, np.left_shift),
    "shr": (lambda a, b: a >> b, np.right_shift),
    "not": (lambda a, b: ~a, lambda a, b: ~a),
    "max": (lambda a, b: tirx.max(a + b, a), lambda a, b: np.maximum(a + b, a)),
    "min": (lambda a, b: tirx.min(a - b, a), lambda a, b: np.minimum(a - b, a)),
    "order": (lambda a, b: tirx.Select(a + b > a, a, b), lambda a, b: np.where(a + b > a, a, b)),
    "abs": (lambda a, b: tirx.abs(a), lambda a, b: np.abs(a)),
    "half": (lambda a, b: tirx.floordiv(a + b, tirx.const(2, a.ty.dtype)), lambda a, b: (a + b) // a.dtype.type(2)),
    "own": (lambda a, b: (a + b) - b, lambda a, b: a),
    "factor": (
        lambda a, b: tirx.truncdiv(a * tirx.const(4, a.ty.dtype), tirx.const(2, a.ty.dtype)),
        lambda a, b: truncated(a * a.dtype.type(4), a.dtype.type(2)),
    ),
}
READERS = {
    "alone": (lambda v: v, lambda v: v),
    "int64": (lambda v: v.astype("int64"), lambda v: v.astype("int64")),
    "sign": (lambda v: v >= tirx.const(0, v.ty.dtype), lambda v: v >= 0),
}


def _element(read, node, x, y, i):
    return read(node(x(i), y(i)))


@pytest.mark.parametrize(
    ("dtype", "own_passes"),
    [(t, False) for t in ("int8", "uint8", "int16", "uint32", "uint64")] + [("int8", True), ("uint16", True)],
)
def test_nodes_of_tir_wrap(dtype, own_passes):
    """With passes of a vendor in the place of `lower_tir` too."""
    a, b = (x.reshape(-1) for x in operands(dtype))
    functions, want = {}, {}
    for (name, (node, in_numpy)), (tail, (read, read_numpy)) in itertools.product(NODES.items(), READERS.items()):
        x, y = (te.placeholder((a.size,), dtype, name=n) for n in "xy")
        z = te.compute((a.size,), partial(_element, read, node, x, y), name="z")
        symbol = f"{name}_{tail}"
        functions[symbol] = te.create_prim_func([x, y, z]).with_attr("global_symbol", symbol)
        with np.errstate(all="ignore"):
            want[symbol] = read_numpy(in_numpy(a, b))
    target = tvm.target.Target("c", host="c")
    mod = tvm.IRModule(functions)
    if own_passes:
        pipeline, finalize, _ = tirx.get_default_tir_pipeline(target)
        mod = finalize()(pipeline(tirx.transform.BindTarget(target)(mod)))
    else:
        mod = lower_tir(mod, target)
    library = compile_object(byoc.generate_c(mod, target), list(functions), ["-O1"])
    for symbol, expected in want.items():
        got = tvm.runtime.empty((a.size,), str(expected.dtype))
        library[symbol](tvm.runtime.tensor(a), tvm.runtime.tensor(b), got)
        np.testing.assert_array_equal(got.numpy(), expected, err_msg=f"{symbol} of {dtype}")


#: what a compiler, or TVM's simplifier, computes otherwise if it takes sums of signed numbers for exact
EXACT = {
    "sum in int64": (lambda e, a, b: op.astype(e(op.add(a, b)), "int64"), lambda a, b: (a + b).astype("int64")),
    "sum > addend": (lambda e, a, b: op.greater(e(op.add(a, b)), a), lambda a, b: a + b > a),
    "larger of sum": (lambda e, a, b: op.maximum(e(op.add(a, b)), a), lambda a, b: np.maximum(a + b, a)),
    "smaller of difference": (lambda e, a, b: op.minimum(e(op.subtract(a, b)), a), lambda a, b: np.minimum(a - b, a)),
    "abs >= 0": (lambda e, a, b: op.greater_equal(e(op.abs(a)), op.zeros_like(a)), lambda a, b: np.abs(a) >= 0),
    "-(-a)": (lambda e, a, b: op.abs(e(op.negative(a))), lambda a, b: np.abs(-a)),
    "4a / 2": (
        lambda e, a, b: op.floor_divide(
            e(op.multiply(a, e(op.full_like(a, relax.const(4))))), op.full_like(a, relax.const(2))
        ),
        lambda a, b: (a * a.dtype.type(4)) // a.dtype.type(2),
    ),
}


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64"])
def test_sums_are_not_taken_for_exact(dtype):
    a, b = operands(dtype)

    def build(builder, *params):
        return [in_relax(lambda e: builder.emit(builder.normalize(e)), *params) for in_relax, _ in EXACT.values()]

    got = computed(module(build, (dtype, a.shape), (dtype, b.shape)), "ccompiler", a, b)
    with np.errstate(all="ignore"):
        for (name, (_, in_numpy)), g in zip(EXACT.items(), got, strict=True):
            np.testing.assert_array_equal(np.asarray(g), in_numpy(a, b), err_msg=f"{name} of {dtype}")


FLOATS = [
    0.0,
    -0.0,
    1.5,
    -1.5,
    127.9,
    128.0,
    200.0,
    255.5,
    256.0,
    300.0,
    -1.0,
    -128.9,
    -129.0,
    -200.0,
    32768.0,
    65535.0,
]
FLOATS += [65536.0, -32769.0, 2147483520.0, 2147483648.0, 3e9, 5e9, -3e9, 9.2e18, 9.3e18, 1.8e19, 2e19, -1e19]
FLOATS += [float("inf"), float("-inf"), float("nan")]


@pytest.mark.parametrize("source", ["float32", "float64"])
def test_a_number_that_an_integer_cannot_hold_is_converted_as_numpy_and_onnx_runtime_do_on_x86(source):
    x = np.array(FLOATS, source)
    got = computed(module(lambda _, p: [op.astype(p, t) for t in INTEGERS], (source, x.shape)), "ccompiler", x)
    with np.errstate(all="ignore"):
        as_int32 = np.where((x >= -(2.0**31)) & (x < 2.0**31), x, -(2.0**31)).astype("int32")
        as_int64 = np.where((x >= -(2.0**63)) & (x < 2.0**63), x, -(2.0**63)).astype("int64")
        above = np.where((x >= 2.0**63) & (x < 2.0**64), x, 0).astype("uint64")
    for dtype, g in zip(INTEGERS, got, strict=True):
        want = (as_int64 if dtype in ("uint32", "int64", "uint64") else as_int32).astype(dtype)
        want = np.where(x >= 2.0**63, above, want) if dtype == "uint64" else want
        np.testing.assert_array_equal(np.asarray(g), want, err_msg=dtype, strict=True)


def test_bool_has_two_values():
    a, b = np.array([0, 0, 1, 1], bool), np.array([0, 1, 0, 1], bool)
    functions = [(op.add, np.add), (op.multiply, np.multiply), (lambda p, _: op.bitwise_not(p), lambda p, _: ~p)]
    got = computed(
        module(
            lambda builder, p, q: [
                op.astype(builder.emit(builder.normalize(f(p, q))), "float32") for f, _ in functions
            ],
            ("bool", (4,)),
            ("bool", (4,)),
        ),
        "ccompiler",
        a,
        b,
    )
    for g, (_, f) in zip(got, functions, strict=True):
        np.testing.assert_array_equal(np.asarray(g), f(a, b).astype("float32"))


@pytest.mark.parametrize("name", ["divide", "floor_divide", "floor_mod"])
def test_bool_cannot_be_divided(name):
    mod = module(lambda _, p, q: [getattr(op, name)(p, q)], ("bool", (4,)), ("bool", (4,)))
    (call,) = byoc.explain(mod, "ccompiler").calls
    assert "of bool, which has no such result; cast to int8 first" in str(call.reasons)


def test_arithmetic_of_loops_and_sizes_stays_as_it_is():
    """A compiler vectorises loops whose indices it knows not to overflow."""
    x = te.placeholder((8, 16), "float32", name="x")
    y = te.compute((16, 8), lambda i, j: x[j, i] + 1, name="y")
    target = tvm.target.Target("c", host="c")
    func = te.create_prim_func([x, y]).with_attr("global_symbol", "f")
    assert "byoc_" not in byoc.generate_c(lower_tir(tvm.IRModule({"f": func}), target), target)


def test_the_host_s_own_c_wraps_too(tmp_path):
    """A model that stays with TVM, for ``target="c"``; an infinity beside, which TVM does not write as C."""
    a, b = operands("int8")

    def build(builder, x, y):
        total = builder.emit(builder.normalize(op.add(x, y)))
        masked = op.where(op.less(total, x), relax.const(np.float32(-np.inf)), relax.const(np.float32(1)))
        return [op.astype(total, "float32"), op.right_shift(total, op.ones_like(x)), masked]

    with np.errstate(all="ignore"):
        total = a + b
    want = [total.astype("float32"), total >> np.int8(1), np.where(total < a, -np.inf, 1).astype("float32")]
    executable = byoc.compile(module(build, ("int8", a.shape), ("int8", a.shape)), [], target="c")
    executable.export_library(tmp_path / "m.so")
    for run in (byoc.Runner(executable), byoc.load(tmp_path / "m.so")):
        for g, w in zip(run(a, b), want, strict=True):
            np.testing.assert_array_equal(np.asarray(g), w, strict=True)
