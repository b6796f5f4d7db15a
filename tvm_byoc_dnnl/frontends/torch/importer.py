"""PyTorch's exported programs, through TVM's importer: what it would refuse, cut or compute too narrowly is mended.

It takes the dtype of an operator's first operand for that in which the operator is computed. It gives products and
convolutions of all dtypes a result in float32, and takes no norm whose data are narrower than its parameters, as in a
model in bfloat16 or under autocast.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from types import SimpleNamespace
from typing import Any

import tvm
from tvm import relax, tirx

from ...core.errors import UnsupportedError, first_line
from ...ir.relax_utils import DIMS_ATTR, shape_dims, straight_line, with_attributes
from ...ir.tvm_compat import analyzer, dtype_of, substitute
from ..onnx.dim import Size, equal, max_of, min_of, size_of
from ..onnx.value import Value
from ..onnx.walk import walk_into
from . import arguments, dtype_name, is_tensor
from .operators import CONVERTERS as OPERATORS
from .operators import RECURRENT, decompositions
from .quantised import CONVERTERS as QUANTISED
from .writes import CONVERTERS as WRITES
from .writes import without_writes


def solve_dims(func: relax.Function) -> relax.Function:
    """Compute ``h`` from the sizes of a call where an input has ``2*h``, and none has ``h`` by itself.

    The input gets a symbol for the whole dim, and the body compares its sizes with ``2*h``.
    """
    known = [dim for param in func.params for dim in _dims(param) if isinstance(dim, tirx.Var)]
    bindings: list[Any] = []
    names: dict[str, str] = {}
    params = []
    for param in func.params:
        dims = list(_dims(param))
        for axis, dim in enumerate(dims):
            unknown = _unknown(dim, known)
            solution = straight_line(partial(_with, dim, unknown[0])) if len(unknown) == 1 else None
            if solution is None:
                continue
            start, step = solution
            whole = tirx.Var(f"{param.name}_dim{axis}", "int64")
            names[whole.name] = re.sub(r"T\.int64\((-?\d+)\)", r"\1", str(dim))
            value = relax.ShapeExpr([analyzer().simplify(tirx.floordiv(whole - start, step))])
            type_of_value = relax.ShapeType([unknown[0]])
            bindings.append(relax.MatchCast(relax.Var(unknown[0].name, type_of_value), value, type_of_value))
            known.append(unknown[0])
            dims[axis] = whole
        if all(new is old for new, old in zip(dims, _dims(param), strict=True)):
            params.append(param)
            continue
        params.append(relax.Var(param.name, relax.TensorType(relax.ShapeExpr(dims), param.ty.dtype)))
        bindings.append(relax.MatchCast(param, params[-1], param.ty))
    if not names:
        return func
    body = relax.SeqExpr([relax.BindingBlock(bindings), *func.body.blocks], func.body.body)
    new = relax.Function(params, body, func.ret_ty, func.is_pure, func.attrs, func.span)
    return new.with_attr(DIMS_ATTR, names)


def _dims(param: relax.Var) -> list[Any]:
    return (shape_dims(param.ty) or []) if isinstance(param.ty, relax.TensorType) else []


def _with(dim: Any, symbol: Any, value: Any) -> Any:
    return substitute(dim, {symbol: value})


def _unknown(dim: Any, known: Sequence[Any]) -> list[Any]:
    if isinstance(dim, (int, tirx.Var)):
        return []
    return [v for v in tirx.analysis.undefined_vars(dim) if not any(v.same_as(k) for k in known)]


def fused() -> dict[Any, Callable[..., Any]]:
    """Overload → function, as ``ExportedProgram.run_decompositions`` takes them."""
    import torch
    from torch.nn.functional import gelu, layer_norm, linear, relu, softmax

    def attention(
        query: Any, key: Any, value: Any, embed_dim: int, num_head: int, qkv_weight: Any, qkv_bias: Any,
        proj_weight: Any, proj_bias: Any, mask: Any = None, need_weights: bool = True,
        average_attn_weights: bool = True, mask_type: int | None = None,
    ) -> tuple[Any, Any]:  # fmt: skip
        parts = zip((query, key, value), qkv_weight.chunk(3), qkv_bias.chunk(3), strict=True)
        q, k, v = (linear(x, w, b).unflatten(-1, (num_head, -1)).transpose(1, 2) for x, w, b in parts)
        scores = (q * (embed_dim // num_head) ** -0.5) @ k.transpose(-2, -1)
        if mask is not None:
            hidden = mask.to(torch.bool)
            if mask_type == 1:  # of keys; the others are of pairs
                hidden = hidden[:, None, None, :]
            scores = scores.masked_fill(hidden, float("-inf"))
        weights = softmax(scores, dim=-1)
        result = linear((weights @ v).transpose(1, 2).flatten(2), proj_weight, proj_bias)
        shown = weights.mean(1) if average_attn_weights else weights
        return result, shown if need_weights else torch.empty(0, dtype=result.dtype)

    def encoder_layer(
        src: Any, embed_dim: int, num_heads: int, qkv_weight: Any, qkv_bias: Any, proj_weight: Any, proj_bias: Any,
        use_gelu: bool, norm_first: bool, eps: float, norm_weight_1: Any, norm_bias_1: Any, norm_weight_2: Any,
        norm_bias_2: Any, ffn_weight_1: Any, ffn_bias_1: Any, ffn_weight_2: Any, ffn_bias_2: Any, mask: Any = None,
        mask_type: int | None = None,
    ) -> Any:  # fmt: skip
        def attended(x: Any) -> Any:
            inputs = (x, x, x, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias)
            return attention(*inputs, mask, False, False, mask_type)[0]

        def fed_forward(x: Any) -> Any:
            activate = gelu if use_gelu else relu
            return linear(activate(linear(x, ffn_weight_1, ffn_bias_1)), ffn_weight_2, ffn_bias_2)

        x = src
        for part, weight, bias in ((attended, norm_weight_1, norm_bias_1), (fed_forward, norm_weight_2, norm_bias_2)):
            if norm_first:
                x = x + part(layer_norm(x, (embed_dim,), weight, bias, eps))
            else:
                x = layer_norm(x + part(x), (embed_dim,), weight, bias, eps)
        return x

    def view(x: Any, size: Sequence[Any]) -> Any:
        """A fused attention's result has other strides than that of the operators into which it is decomposed."""
        return NotImplemented if x.is_contiguous() else x.contiguous().view(size)

    return {
        torch.ops.aten.view.default: view,
        torch.ops.aten._native_multi_head_attention.default: attention,
        torch.ops.aten._transformer_encoder_layer_fwd.default: encoder_layer,
    }


#: operators that compute in the dtype of their result, beside those of single elements
_OF_ITS_RESULT = {"cat", "cumprod", "cumsum", "mean", "prod", "sum"}


def _promote(program: Any) -> None:
    """Cast operands to the dtype in which PyTorch computes an operator; TVM's importer takes that of the first one.

    ``positions / 2`` and ``count > 0.5`` of integers would be cut to integers, and other mixtures are refused.
    """
    import torch

    for graph in _graphs(program):
        for node in [node for node in graph.nodes if hasattr(node.target, "_opname")]:
            result = node.meta.get("val")
            is_of_elements = torch.Tag.pointwise in node.target.tags
            if not isinstance(result, torch.Tensor) or not (is_of_elements or node.target._opname in _OF_ITS_RESULT):
                continue
            chosen = [a for name, a in arguments(node).items() if name in ("condition", "mask")]
            operands = {a: a.meta["val"] for a in node.all_input_nodes if a not in chosen}
            dtype = _dtype_of_operands(node, operands, result.dtype)
            for operand, value in operands.items():
                if isinstance(value, torch.Tensor) and value.dtype != dtype:
                    with graph.inserting_before(node):
                        cast = graph.call_function(torch.ops.aten._to_copy.default, (operand,), {"dtype": dtype})
                    cast.meta["val"] = value.to(dtype)
                    node.replace_input_with(operand, cast)


def _dtype_of_operands(node: Any, operands: Mapping[Any, Any], usual: Any) -> Any:
    import torch

    values = [operands.get(a, a) for a in node.args]
    if node.target._opname in ("eq", "ge", "gt", "le", "lt", "ne"):
        return torch.result_type(values[0], values[1] if isinstance(values[1], (torch.Tensor, float)) else 0)
    if node.target._opname in ("isfinite", "isinf", "isnan", "isneginf", "isposinf", "signbit"):
        return values[0].dtype if values[0].is_floating_point() else torch.float32
    return usual


def _graphs(program: Any) -> list[Any]:
    return [module.graph for module in program.graph_module.modules() if hasattr(module, "graph")]


_OVERLOADS = (
    *("addmm.default", "baddbmm.default", "bmm.default"),
    *(f"conv{rank}d.default" for rank in (1, 2, 3)),
    *("conv_transpose1d.default", "conv_transpose2d.input", "conv_transpose3d.input", "convolution.default"),
    *("linear.default", "matmul.default", "mm.default"),
)


def _converter(overload: str) -> Callable[[Any, Any], Any]:
    def convert(node: Any, importer: Any) -> Any:
        if dtype_name(node.meta["val"].dtype) == "float32":
            return NotImplemented
        usual = importer.create_convert_map()[overload]
        builder = importer.block_builder
        importer.block_builder = _OwnDtype(builder)
        try:
            return usual(node)
        finally:
            importer.block_builder = builder

    return convert


def _widened(overload: str) -> Callable[[Any, Any], Any]:
    """A norm whose parameters have another dtype than its data: in float32, as PyTorch computes it."""

    def convert(node: Any, importer: Any) -> Any:
        builder = importer.block_builder
        given = {a: importer.env[a] for a in node.args if not isinstance(a, list) and a in importer.env}
        dtypes = {dtype_of(value.ty) for value in given.values()}
        if len(dtypes) == 1 and (overload in _IN_BFLOAT16 or dtypes != {"bfloat16"}):
            return NotImplemented
        usual = importer.create_convert_map()[overload]
        importer.env.update({a: builder.emit(relax.op.astype(value, "float32")) for a, value in given.items()})
        try:
            return builder.emit(relax.op.astype(usual(node), dtype_of(given[node.args[0]].ty)))
        finally:
            importer.env.update(given)

    return convert


class _OwnDtype:
    """A block builder whose products have the dtype of their operands."""

    def __init__(self, builder: relax.BlockBuilder) -> None:
        self._builder = builder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._builder, name)

    def emit(self, expr: Any, *names: str) -> Any:
        return self._builder.emit(self._own(expr), *names)

    def _own(self, expr: Any) -> Any:
        if not isinstance(expr, relax.Call):
            return expr
        args = [self._builder.normalize(self._own(arg)) for arg in expr.args]
        if str(getattr(expr.attrs, "out_dtype", "") or "") == "float32":
            return with_attributes(expr, args, out_dtype=dtype_of(args[0].ty))
        return relax.Call(expr.op, args, expr.attrs, expr.ty_args)


#: norms that Relax has for bfloat16, and those that it has not
_IN_BFLOAT16 = ("_native_batch_norm_legit_no_training.default", "native_layer_norm.default")
_NORMS = (*_IN_BFLOAT16, "_native_batch_norm_legit.no_stats")
#: in place of the importer's own, by the name of the overload
NARROW = {overload: _converter(overload) for overload in _OVERLOADS} | {
    overload: _widened(overload) for overload in _NORMS
}


def import_torch(program: Any) -> tvm.IRModule:
    """A Relax module of a ``torch.export.ExportedProgram``, its parameters as constants."""
    from tvm.relax.frontend.torch import from_exported_program

    for node in program.graph.nodes:
        tags = [tag.name for tag in getattr(node.target, "tags", ())]
        if "nondeterministic_seeded" in tags and not _drops_nothing(node):  # TVM's importer leaves dropout out
            raise UnsupportedError(f"{node.target} gives random results; call model.eval() for inference")
    try:
        program = without_writes(decomposed(program))
        _fix_known_sizes(program)
        _promote(program)
        mod = from_exported_program(
            program,
            keep_params_as_input=False,
            unwrap_unit_return_tuple=True,
            custom_convert_map=_converters(program),
            run_ep_decomposition=False,
        )
        mod["main"] = solve_dims(mod["main"])
        return mod
    except UnsupportedError:
        raise
    except Exception as err:  # assertions, KeyErrors and TVM's own errors of any kind
        raise UnsupportedError(
            f"TVM's PyTorch importer refuses this program: {first_line(err)}; "
            "torch.onnx.export(dynamo=True) and the ONNX form often work instead"
        ) from err


def _converters(program: Any) -> dict[str, Callable[[Any, Any], Any]]:
    """Of each operator of a program and its branches: ours, or TVM's, whose results are compared with PyTorch's.

    TVM's importer leaves out arguments and results of some operators without a word. One of ours gives
    ``NotImplemented`` where TVM's is right.
    """
    from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

    called = {node.target.__name__ for graph in _graphs(program) for node in graph.nodes if node.op == "call_function"}
    known = called & {*ExportedProgramImporter().create_convert_map(), *CONVERTERS}
    sizes: dict[Any, dict[Any, Size]] = {}
    return {overload: _converted(overload, sizes) for overload in known}


def _converted(overload: str, sizes: dict[Any, dict[Any, Size]]) -> Callable[[Any, Any], Any]:
    own = CONVERTERS.get(overload, lambda node, importer: NotImplemented)

    def convert(node: Any, importer: Any) -> Any:
        result = own(node, importer)
        if result is not NotImplemented:
            return _in_sizes_of(node, importer, result, sizes.setdefault(node.graph, {}))
        result = importer.create_convert_map()[overload](node)
        got, want = getattr(result, "ty", None), node.meta.get("val")
        is_part_of_ours = overload == "getitem" and node.args[0].target.__name__ in CONVERTERS
        if is_part_of_ours or not isinstance(got, relax.TensorType) or not hasattr(want, "shape"):
            return result
        dims, dtype = shape_dims(got), dtype_name(want.dtype)
        if dims == [1] and not want.shape:  # TVM's importer has numbers as tensors of one element here and there
            dims, result = [], importer.block_builder.emit(relax.op.reshape(result, []))
        differs = dims is not None and (
            len(dims) != len(want.shape)
            or any(a != b for a, b in zip(dims, want.shape) if isinstance(a, int) and isinstance(b, int))
        )
        if differs or dtype_of(got) != dtype:
            raise UnsupportedError(
                f"TVM's PyTorch importer makes {dtype_of(got)} {dims} of {node.name} ({node.target}), "
                f"which is {dtype} {list(want.shape)}"
            )
        return _in_sizes_of(node, importer, result, sizes.setdefault(node.graph, {}))

    return convert


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Add": lambda *sizes: reduce(operator.add, sizes),
    "FloorDiv": operator.floordiv,
    "Max": max_of,
    "Min": min_of,
    "Mod": operator.mod,
    "Mul": lambda *sizes: reduce(operator.mul, sizes),
}


def _size(expr: Any, known: Mapping[Any, Size]) -> Any:
    """A size of PyTorch, a SymPy expression, by those that are known; ``None`` where they do not say it."""
    if expr in known or expr.is_Integer:
        return known[expr] if expr in known else int(expr)
    parts = [_size(part, known) for part in expr.args]
    function = _FUNCTIONS.get(type(expr).__name__)
    return function(*parts) if function is not None and parts and None not in parts else None


def _in_sizes_of(node: Any, importer: Any, result: Any, known: dict[Any, Size]) -> Any:
    """A result in the sizes that PyTorch has found, such as ``s`` where ``min(s, 64)`` is cut; a call checks them.

    ``known``: the sizes of the graph so far, by PyTorch's expressions. What is equal there has one form here.
    """
    wanted = getattr(node.meta.get("val"), "shape", None)
    if wanted is None or not is_tensor(result) or all(isinstance(size, int) for size in wanted):
        return result
    for operand in node.all_input_nodes:
        given, value = importer.env.get(operand), operand.meta.get("val")
        if is_tensor(given):
            pairs = list(zip(value.shape, shape_dims(given.ty) or (), strict=False))
        else:
            pairs = [(value, given)] if hasattr(value, "node") else []  # a size
        for size, dim in pairs:
            if not isinstance(size, int):
                known.setdefault(size.node.expr, size_of(dim))
    sizes = [size if isinstance(size, int) else _size(size.node.expr, known) for size in wanted]
    if any(size is None for size in sizes):
        return result
    with walk_into(importer.block_builder).emit.emitting() as e:
        value = Value(result)
        if value.dims is not None and all(map(equal, value.dims, sizes)):
            return result
        return e.tensor(e.agree(value, sizes, hidden=True))


def _fix_known_sizes(program: Any) -> None:
    """Say sizes as numbers that PyTorch found to be such behind its symbols, which TVM would leave open."""
    for node in program.graph.nodes:
        value: Any = node.meta.get("val") if node.op == "placeholder" else None
        if hasattr(value, "shape"):
            sizes = [size if isinstance(size, int) else size.node.maybe_as_int() or size for size in value.shape]
            node.meta["tensor_meta"] = SimpleNamespace(shape=sizes, dtype=value.dtype)


def decomposed(program: Any) -> Any:
    """The program in the operators that are imported, in which a write is one more result."""
    return program.run_decompositions({**decompositions(program), **fused()})


def _drops_nothing(node: Any) -> bool:
    """Whether an operator that can drop random values drops none."""
    names = [argument.name for argument in node.target._schema.arguments]
    given = {**dict(zip(names, node.args)), **node.kwargs}
    if "train" in names:
        return given.get("train") is False
    return "dropout_p" in names and not given.get("dropout_p")


#: in place of the importer's own, by the name of the overload
CONVERTERS = {
    **NARROW,
    **OPERATORS,
    **QUANTISED,
    **RECURRENT,
    **WRITES,
}
