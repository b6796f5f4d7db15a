"""ONNX models: fix the inputs' shapes, and import."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnx
import tvm
from onnx import helper, numpy_helper
from onnx.numpy_helper import to_array
from tvm import relax, tirx
from tvm.ir.supply import UniqueNameSupply

from ...core.compilation import OverwritableWeights
from ...core.errors import ByocError, InputError, MissingFileError, UnsupportedError, first_line, out_of_resources
from ...core.tensor_info import CACHE_DTYPES, STORED
from ...core.tvm_fast import ByIdentity, is_a, items
from ...ir.relax_utils import DIMS_ATTR, LABELS_ATTR, OUTPUTS_ATTR, shape_dims
from ...ir.tvm_compat import substitute
from ...ir.walker import Substitute
from ..gguf import SUFFIX as GGUF
from ..gguf.decoder import read_decoder
from .dim import size_of
from .emit import is_as_tvm_wants
from .file import Weights, load_whole, read_model
from .inputs import (
    OpenInputs,
    Shapes,
    advice_on_inputs,
    fixed_inputs,
    given_inputs,
    name_dims,
    refuse_sequences,
    relax_shapes,
)
from .scope import Plan, Scope, opsets_of
from .structure import check_structure, dense
from .value import Value
from .walk import Missing, Shared, Walk, built

_Read = TypeVar("_Read")


def load_onnx(path: Path) -> onnx.ModelProto:
    """The model in an .onnx file, with the weights in files beside it, or in a .gguf file."""
    if path.suffix != GGUF:
        return _read(path, load_whole)
    model, weights = load_apart(path)
    for tensor in model.graph.initializer:
        tensor.raw_data = weights[tensor.name].tobytes()
    return model


def load_apart(path: Path) -> tuple[onnx.ModelProto, Weights]:
    """The model in an .onnx or .gguf file, and those weights that are not in it but apart."""
    if path.suffix != GGUF:
        return _read(path, read_model)
    model, weights = _read(path, read_decoder)
    return model, Weights(weights)


def parsed(data: bytes) -> onnx.ModelProto:
    """The model in the bytes of an .onnx file."""
    try:
        return onnx.ModelProto.FromString(data)
    except Exception as err:
        raise InputError(f"cannot read these {len(data)} bytes as an ONNX model: {first_line(err)}") from err


def refuse_empty(model: onnx.ModelProto) -> None:
    if not model.graph.output:
        raise InputError("the ONNX model has no outputs: it is empty or damaged")


def _read(path: Path, read: Callable[[Path], _Read]) -> _Read:
    try:
        return read(path)
    except ByocError:
        raise
    except FileNotFoundError as err:
        if str(err.filename) != str(path):
            raise InputError(f"cannot read `{path}`: its weights are in `{err.filename}`, which is not there") from err
        raise MissingFileError(f"no file `{path}`; give the path of an .onnx or .gguf file") from err
    except Exception as err:  # protobuf's DecodeError, OSError and ValueError of external data
        if (resources := out_of_resources(err)) is not None:
            raise resources from err
        raise InputError(f"cannot read `{path}` as an ONNX model: {first_line(err)}") from err


def import_onnx(
    model: onnx.ModelProto, shapes: Shapes | None = None, weights: Weights | None = None, *, string_labels: bool = False
) -> tvm.IRModule:
    """A Relax module of an ONNX model; see `to_relax`. ``weights``: those whose data are not in the model."""
    try:
        return _import_onnx(model, shapes, weights or Weights({}), string_labels)
    except UnsupportedError as error:
        raise UnsupportedError(f"{error}{advice_on_inputs(model, shapes or {})}") from error.__cause__
    except ByocError:
        raise
    except Exception as error:
        if (resources := out_of_resources(error)) is not None:
            raise resources from error
        raise InputError(
            f"the ONNX model cannot be read ({type(error).__name__}: {first_line(error)}); onnx.checker.check_model "
            "may say which node is not as ONNX defines it"
        ) from error


def _import_onnx(model: onnx.ModelProto, shapes: Shapes | None, weights: Weights, string_labels: bool) -> tvm.IRModule:
    refuse_empty(model)
    if any(t.data_location == onnx.TensorProto.EXTERNAL for t in model.graph.initializer):
        raise InputError(
            "the model's weights lie in files beside it and are not loaded; give its path, or call "
            "onnx.load_external_data_for_model first"
        )
    check_structure(model, weights)
    given = fixed_inputs(given_inputs(model, shapes), shapes or {})
    refuse_sequences(given)
    named = name_dims([*given, *model.graph.output])
    inputs, outputs = named[: len(given)], named[len(given) :]
    shared = Shared(model)
    shared.labels = {} if string_labels else None
    opened = relax_shapes(inputs)
    plan = Plan(model.graph.node, [o.name for o in outputs])
    params = _parameters(inputs, opened)

    def read(walk: Walk) -> Any:
        scope = Scope(opsets_of(model.opset_import))
        scope.lazy.update({t.name: partial(_constant, t) for t in model.graph.initializer})
        scope.names.update({t.values.name: Value(known=dense(t)) for t in model.graph.sparse_initializer})
        scope.lazy.update({k: partial(Value, known=a, ready=weights.complete) for k, a in weights.items()})
        scope.names.update({i.name: Value(p, dtype=_dtype(i)) for i, p in zip(inputs, params, strict=True)})
        _solve(walk, scope, opened)
        results = [_result(walk, v, o.name) for v, o in zip(_walked(walk, scope, plan, outputs), outputs, strict=True)]
        return params, results[0] if len(results) == 1 else relax.Tuple(results)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of NumPy, about the numbers of constants
        built(shared, "main", params, read)
    module = shared.root.get()
    if len(module.functions) > 1:  # some may be of branches or rounds that were read again
        module = relax.transform.DeadCodeElimination()(module)
    for gv, func in module.functions.items():
        if is_a(func, relax.Function):
            module[gv] = unify_dims(func)
    names = {"input_names": [i.name for i in inputs], "output_names": [o.name for o in outputs]}
    attrs: dict[str, Any] = {**names, "num_input": len(inputs)}
    if opened.names:
        attrs[DIMS_ATTR] = opened.names
        attrs[OUTPUTS_ATTR] = [[str(d.dim_value or d.dim_param) for d in o.type.tensor_type.shape.dim] for o in outputs]
    if shared.labels:
        attrs[LABELS_ATTR] = shared.labels
    module["main"] = module["main"].with_attrs(attrs)
    if weights.own is not None:
        _note_overwritable(module, shared.weights, weights, weights.own)
    weights.complete()
    return module


def _walked(walk: Walk, scope: Scope, plan: Plan, outputs: Sequence[onnx.ValueInfoProto]) -> list[Value | None]:
    try:
        return walk.graph(scope, plan, [o.name for o in outputs])
    except Missing as error:
        named = dict.fromkeys([str(error), *walk.missing(plan.nodes, scope)])
        raise UnsupportedError(
            f"no Relax equivalent for ONNX operator{'s' if len(named) > 1 else ''} {', '.join(named)} "
            f"(opset {scope.opsets.get('', 1)}); export the model with standard operators instead"
        ) from None


def _result(walk: Walk, value: Value | None, name: str) -> Any:
    if value is None or value.is_empty:
        raise UnsupportedError(f"no Relax equivalent for the output `{name}`, which is an empty optional")
    if value.words is not None and walk.shared.labels is not None:
        walk.shared.labels[name] = list(value.words.table)
        return value.expr
    if value.items is not None:
        return relax.Tuple([walk.emit.tensor(item) for item in value.items])
    return walk.emit.tensor(value)


def _constant(tensor: onnx.TensorProto) -> Value:
    return Value(known=to_array(tensor))


def _parameters(inputs: Iterable[onnx.ValueInfoProto], shapes: OpenInputs) -> list[relax.Var]:
    names = UniqueNameSupply()
    params = []
    for value in inputs:
        dtype = _dtype(value)
        if dtype == "object":
            raise UnsupportedError(
                f"no Relax equivalent for the input `{value.name}`, which is a tensor of strings; encode it before"
            )
        name = value.name.replace(".", "_")
        name = name if name[:1].isalpha() or name[:1] == "_" else f"input_{name}"  # what Relax takes for a variable
        ty = relax.TensorType(shapes.shapes.get(value.name), STORED.get(dtype, dtype))
        params.append(relax.Var(str(names.fresh_name(name)), ty))
    return params


def _dtype(value: onnx.ValueInfoProto) -> str:
    kind = value.type.tensor_type.elem_type
    return str(helper.tensor_dtype_to_np_dtype(kind)) if kind else "float32"


def _solve(walk: Walk, scope: Scope, shapes: OpenInputs) -> None:
    """The symbols that no input has by itself, and the inputs whose sizes are expressions of them."""
    for symbol, value in shapes.solved:
        walk.bb.match_cast(walk.bb.emit(relax.ShapeExpr([value])), relax.ShapeType([symbol]))
        walk.emit.given.add(symbol)
    for name, dims in shapes.inner.items():
        given = scope.names[name]
        assert given is not None
        scope.names[name] = walk.emit.agree(given, [size_of(d) for d in dims])


_LINEAR = ("relax.matmul", *(f"relax.nn.conv{d}d{t}" for d in (1, 2, 3) for t in ("", "_transpose")))


def _note_overwritable(
    module: tvm.IRModule, weights: Sequence[tuple[Any, np.ndarray]], read: Weights, own: OverwritableWeights
) -> None:
    """Note in ``own`` the constants that are nothing but the weights of one linear operator, and have memory of their
    own; ``read`` are the arrays that were read for this import.
    """
    fresh = {id(array) for array in read.values()}
    others = [array for _, array in weights if id(array) not in fresh and is_as_tvm_wants(array)]
    owned: ByIdentity[int] = ByIdentity.of(
        (constant, 0)
        for constant, a in weights
        if not is_as_tvm_wants(a) or (id(a) in fresh and not any(np.may_share_memory(a, other) for other in others))
    )
    linear: ByIdentity[None] = ByIdentity()
    for func in module.functions.values():
        for block in items(func.body.blocks) if is_a(func, relax.Function) else ():
            for binding in items(block.bindings):
                call = binding.value
                args = items(call.args) if is_a(call, relax.Call) else [call]
                if is_a(call, relax.Tuple):
                    args = items(call.fields)
                for i, arg in enumerate(args):
                    if arg in owned:
                        owned[arg] += 1
                        if i == 1 and getattr(getattr(call, "op", None), "name", "") in _LINEAR:
                            linear[arg] = None
    own.update((constant, None) for constant in linear if owned[constant] == 1)


#: that compute each row of their first operand by itself, if the other ones are constants
_PRODUCTS = ("MatMul", "MatMulNBits")
_CACHES = {dtype: helper.np_dtype_to_tensor_dtype(np.dtype(dtype)) for dtype in CACHE_DTYPES}
_OF_NUMBERS = ("Add", "Cast", "Div", "Identity", "Mul", "Sub", "Tanh")


def keep_last_row(model: onnx.ModelProto, output: str, apart: Container[str]) -> None:
    """Change a model so that an output [batch, rows, columns] has its last row only, if a product makes it.

    normed [B, S, H] ─> its last row [B, 1, H] ── @ table ── · number, tanh … ── logits [B, 1, V]: a text needs no
    others, and the product with all words is a large part of a prompt. ``apart``: constants that are not in the model.
    """
    graph = model.graph
    makers = {name: node for node in graph.node for name in node.output}
    reads = Counter([name for node in graph.node for name in node.input] + [value.name for value in graph.output])
    inside = {tensor.name for tensor in graph.initializer}

    def changes(name: str) -> bool:
        if not name or name in inside or name in apart:
            return False
        return name not in makers or any(map(changes, makers[name].input))

    declared = {value.name: value.type.tensor_type.shape.dim for value in graph.output}
    dims, name = declared.get(output, []), output
    while len(dims) == 3 and reads[name] == 1 and (node := makers.get(name)) is not None:
        computed = [operand for operand in node.input if changes(operand)]
        if node.op_type in _PRODUCTS and computed == [node.input[0]]:
            last, place = f"{output}.last_row", f"{output}.last_row.place"
            graph.initializer.append(numpy_helper.from_array(np.array([-1]), place))
            at = next(i for i, other in enumerate(graph.node) if name in other.output)
            graph.node.insert(at, helper.make_node("Gather", [node.input[0], place], [last], last, axis=1))
            node = graph.node[at + 1]
            node.input[0] = last
            dims[1].dim_value = 1
            return
        if node.op_type not in _OF_NUMBERS or len(computed) != 1:
            return
        name = computed[0]


def store_caches(model: onnx.ModelProto, dtype: str | None) -> None:
    """Change a model so that the float caches of its GroupQueryAttention, which may have any such dtype, have this one.

    Raises `InputError` if it has no such caches.
    """
    if dtype is None:
        return
    nodes = [node for node in model.graph.node if node.op_type == "GroupQueryAttention"]
    names = {name for node in nodes for name in (*node.input[3:5], *node.output[1:3])}
    caches = [value for value in (*model.graph.input, *model.graph.output) if value.name in names]
    if not caches or any(value.type.tensor_type.elem_type not in _CACHES.values() for value in caches):
        raise InputError(
            f"cache_dtype is {dtype!r}, and the model has no caches of GroupQueryAttention in {', '.join(_CACHES)}; "
            "leave it out"
        )
    for value in caches:
        value.type.tensor_type.elem_type = _CACHES[dtype]


# ---- open dims that must be equal although an exporter names them differently -----------------------------
#
# A decoder adds a mask of length ``total`` to scores of length ``past + new``. The importer writes that as a
# ``match_cast`` where the two meet. Here the mask is compared at once, and all that is made of it has the one length:
# it is then seen that they are the same, and such a comparison no longer divides a region.


def unify_dims(func: relax.Function) -> relax.Function:
    """The function with each dim that must be equal to an expression of inputs' dims written as this.

    Inputs that are equal have one dim. Where one is an expression of others, the inputs keep their own dims, and the
    body begins with their comparison. A dim that a call computes is compared where it is computed.
    """
    free = {dim for param in func.params for dim in _dims(param.ty) if isinstance(dim, tirx.Var)}
    every = _equal(func, free)
    computed = {symbol: value for symbol, value in every.items() if symbol not in free}
    if computed:
        func = Substitute(computed).function(func)
    found = {symbol: value for symbol, value in every.items() if symbol in free}
    same = {symbol: value for symbol, value in found.items() if isinstance(value, tirx.Var)}
    if same:  # the parameters say so: TVM would forget the comparison of two symbols
        func = func.bind_symbolic_vars(same)
    found = {symbol: value for symbol, value in found.items() if symbol not in same}
    if not found:
        return func
    inner = func.bind_symbolic_vars(found)
    params, checks = [], []
    for given, bound in zip(func.params, inner.params, strict=True):
        if any(symbol in found for dim in _dims(given.ty) for symbol in _symbols(dim)):
            params.append(relax.Var(given.name, given.ty))
            checks.append(relax.MatchCast(bound, params[-1], bound.ty))
        else:
            params.append(bound)
    body = relax.SeqExpr([relax.BindingBlock(checks), *inner.body.blocks], inner.body.body)
    return relax.Function(params, body, inner.ret_ty, inner.is_pure, inner.attrs, inner.span)


def _equal(func: relax.Function, free: set[tirx.Var]) -> dict[tirx.Var, Any]:
    """Symbol → the expression of symbols of inputs (``free``) that it is compared with."""
    known: dict[tirx.Var, Any] = {}  # no symbol is in its own expression or in that of another
    for block in items(func.body.blocks):
        for binding in items(block.bindings):
            if not is_a(binding, relax.MatchCast) or not is_a(binding.ty, relax.TensorType):
                continue
            for pair in zip(_dims(binding.value.ty), _dims(binding.ty), strict=False):
                a, b = (dim if isinstance(dim, int) else substitute(dim, known) for dim in pair)
                for symbol, value in ((a, b), (b, a)):
                    if _can_replace(symbol, value, free):
                        known = {s: substitute(v, {symbol: value}) for s, v in known.items()} | {symbol: value}
                        break
    return known


def _can_replace(symbol: Any, value: Any, free: set[tirx.Var]) -> bool:
    within = _symbols(value) if isinstance(symbol, tirx.Var) else []
    return bool(within) and all(other in free and not other.same_as(symbol) for other in within)


def _symbols(size: Any) -> list[Any]:
    return [] if isinstance(size, int) else list(tirx.analysis.undefined_vars(size))


def _dims(ty: Any) -> list[Any]:
    return (shape_dims(ty) or []) if isinstance(ty, relax.TensorType) else []
