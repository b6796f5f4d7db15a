"""Operators of ONNX that are kept whole: one Relax operator each, which predicates and patterns see as one call.

    import:    y = onnx.ai.acme.MyOp(x, w) {alpha: 0.5, present: [1, 1], wanted: [1]}
    annotate:  a compiler that knows the operator takes the call; what none takes is expanded by its definition, and
               the calls of the definition are offered like all others

The Relax operator is named ``onnx.<domain>.<name>``, without the domain for ONNX's own. Its attributes are those of the
node, with the defaults of the definition; ``present`` says which inputs of the node the arguments are, ``wanted`` which
outputs of it the results are.

Operators of this package that are kept whole: attention over a cache, whose meaning the importer of ONNX declares; and
sources of products that are rounded to 8 bits, each block of a row by a scale of its own, found at run time.

    y = x / scale, rounded to whole numbers, times scale;   scale = the largest magnitude of the block / 127

A compiler that takes it together with the product behind it multiplies the whole numbers. So does ONNX Runtime for
``MatMulNBits`` with ``accuracy_level`` 4. A block with a number that is not finite has no finite number in its result.

And ``nn.relu`` that answers a NaN with 0: the shares of a row of a softmax that a mask hides.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import is_
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax
from tvm.relax import op as R
from tvm_ffi import StructuralKey

from ..core.errors import InputError, UnsupportedError
from ..core.tvm_fast import ByIdentity, is_a, items
from ..ir.relax_utils import (
    NODES_ATTR,
    blocks_in,
    is_host_function,
    is_op_call,
    make_constant,
    ops_of,
    shape_dims,
    static_shape,
)
from ..ir.tvm_compat import dtype_of, is_constant, with_args
from ..ir.walker import Replace, rewrite_calls_in

PRESENT, WANTED = "present", "wanted"

# both are those of before, when this module is reloaded
_TABLE: dict[str, Operator] = globals().get("_TABLE", {})  # by the name of the Relax operator
_DEFINED: set[str] = globals().get("_DEFINED", set())  # names of Relax operators
#: operator, types of the arguments and attributes → the type that the definition gives: the layers of a model are alike
_FOUND: dict[tuple[str, StructuralKey, StructuralKey], Any] = {}
_MOST_FOUND = 1024


@dataclass(frozen=True)
class Operator:
    """An operator that is kept whole, as ONNX names it; the domain of ONNX's own operators is ``""``."""

    domain: str
    name: str
    #: ``build(bb, call, node)`` builds a call of others, and returns one or all outputs; ``node`` is for messages
    build: Callable[[relax.BlockBuilder, Any, str], Any] | None = None
    #: the type of the output of a call, or those of all outputs; without it ``build`` finds them
    infer: Callable[[Any], Any] | None = None
    #: those that it may have with their defaults, ``empty`` for one that it must have; by default any
    attributes: Mapping[str, Any] | None = None
    #: inputs that are arguments of a shape type
    sizes: frozenset[int] = frozenset()

    @property
    def relax_name(self) -> str:
        return _relax_name(self.domain, self.name)

    def call(
        self, inputs: Sequence[Any], attributes: Mapping[str, Any], wanted: Sequence[bool], node: str
    ) -> relax.Call:
        """A call of the Relax operator, for a node: ``None`` is an input that it leaves out.

        The call gives one tensor, or a tuple of those outputs that are wanted. An `InputError` names an attribute that
        the operator does not have, or lacks.
        """
        known = self.attributes
        if known is not None:
            if unknown := sorted(attributes.keys() - known):
                takes = ", ".join(known) or "none"
                raise InputError(
                    f"{self.name} (node `{node}`) has the attribute `{unknown[0]}`; the attributes that it may have "
                    f"are: {takes}"
                )
            if missing := [k for k, v in known.items() if v is inspect.Parameter.empty and k not in attributes]:
                raise InputError(f"{self.name} (node `{node}`) has no attribute `{missing[0]}`, which it needs")
        values = {k: v for k, v in {**(known or {}), **attributes}.items() if v is not None}
        values |= {PRESENT: [i is not None for i in inputs], WANTED: [bool(w) for w in wanted]}
        args = [i for i in inputs if i is not None]
        return relax.Call(tvm.ir.Op.get(self.relax_name), args, tvm.ir.make_node("ir.DictAttrs", **values))


def declare(entry: Operator) -> None:
    """Make an operator known, to TVM as well; it takes the place of one of the same name."""
    _define(entry.relax_name)
    _TABLE[entry.relax_name] = entry
    _FOUND.clear()


def reserve(domain: str, name: str) -> str:
    """The name of a Relax operator that is declared later; compilers can be registered for it now."""
    _define(_relax_name(domain, name))
    return _relax_name(domain, name)


def _define(name: str) -> None:
    """Make a Relax operator, which TVM knows until the process ends."""
    if name in _DEFINED:
        return
    _DEFINED.add(name)
    if name not in tvm.ir.Op.list_op_names():
        tvm.ir.op._ffi_api.RegisterOp(name, "an operator of ONNX that is kept whole")
    op = tvm.ir.Op.get(name)
    op.set_attr("FInferType", lambda call, bb: _infer(_TABLE[name], call))
    op.set_attr("FLegalize", lambda bb, call: expanded(bb, call))  # in a build that did not expand it before
    op.set_attr("FPurity", True)


def operator(domain: str, name: str) -> Operator | None:
    return _TABLE.get(_relax_name(domain, name))


def _relax_name(domain: str, name: str) -> str:
    return ".".join(filter(None, ("onnx", "" if domain == "ai.onnx" else domain, name)))


def is_whole(op_name: str) -> bool:
    return op_name in _TABLE


def inputs_of(call: Any) -> list[Any]:
    """The inputs of the node from which a call was made, ``None`` for those that it leaves out."""
    args = iter(items(call.args))
    return [next(args) if there else None for there in items(call.attrs[PRESENT])]


def attributes_of(call: Any) -> dict[str, Any]:
    """The attributes of the node from which a call was made, with the defaults."""
    values = {str(k): v for k, v in call.attrs.items() if k not in (PRESENT, WANTED)}
    return {k: list(v) if isinstance(v, tvm_ffi.Array) else v for k, v in values.items()}


def wanted_of(call: Any) -> list[bool]:
    """For each output of the node from which a call was made, whether the call gives it."""
    return [bool(w) for w in items(call.attrs[WANTED])]


def _chosen(call: Any, outputs: Any, title: str) -> list[Any]:
    """Those outputs that the call gives."""
    found = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
    wanted = [i for i, is_wanted in enumerate(wanted_of(call)) if is_wanted]
    lacking = [i for i in wanted if i >= len(found) or found[i] is None]
    if lacking:
        raise UnsupportedError(f"{title} gives its output {lacking[0]}, which its definition does not compute")
    return [found[i] for i in wanted]


def _title(entry: Operator, node: str) -> str:
    return f"{entry.name} (node `{node}`)" if node else f"{entry.domain or 'ai.onnx'}.{entry.name}"


def _infer(entry: Operator, call: Any) -> Any:
    if entry.infer is not None:
        given = _chosen(call, entry.infer(call), _title(entry, ""))
        return given[0] if len(given) == 1 else relax.TupleType(given)
    key = (
        call.op.name,
        StructuralKey(relax.TupleType([arg.ty for arg in items(call.args)])),
        StructuralKey(call.attrs),
    )
    found = _FOUND.get(key)
    if found is None:
        scratch = relax.BlockBuilder()
        symbols = [symbol for arg in items(call.args) for symbol in items(relax.analysis.tir_vars_in_type(arg.ty))]
        with scratch.testing_scope(def_vars=list(dict.fromkeys(symbols))):
            found = scratch.normalize(expanded(scratch, call)).ty
        if len(_FOUND) >= _MOST_FOUND:
            _FOUND.clear()
        _FOUND[key] = found
    return found


def expanded(bb: relax.BlockBuilder, call: Any, node: str = "") -> Any:
    """The result of a call, a tensor or a tuple, built of the operators of its definition; ``node`` is for messages.

    It is refused if the operator has no definition, or the definition refuses the call.
    """
    entry = _TABLE[call.op.name]
    title = _title(entry, node)
    if entry.build is None:
        raise UnsupportedError(
            f"{title} has no definition, and no compiler takes it: compile with the compiler that has it, or register "
            "the operator with a definition"
        )
    outputs = _chosen(call, entry.build(bb, call, node), title)
    return bb.normalize(outputs[0]) if len(outputs) == 1 else bb.normalize(relax.Tuple([bb.emit(o) for o in outputs]))


_MOST_COMPARED = 64  # numbers of a constant


def whole_ops(func: relax.Function) -> set[str]:
    """The operators that are kept whole and that a function calls, in branches too."""
    return set(filter(is_whole, ops_of(func)))


class _Builder:
    """A builder that names new variables after the one that they belong to, those of nested calls too.

    Equal calls are made once in a block (``known``): the layers of a model have the same masks.
    """

    def __init__(self, bb: relax.BlockBuilder, name: str, known: dict[StructuralKey, Any]) -> None:
        self._bb = bb
        self._name = f"{name}_part"
        self._known = known

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bb, name)

    def normalize(self, expr: Any) -> Any:
        return self._bb.normalize(self._flat(expr))

    def emit(self, expr: Any, name_hint: str = "") -> Any:
        flat = self._bb.normalize(self._flat(expr))  # with its type, which is compared, too
        key = StructuralKey(flat) if _is_comparable(flat) else None
        found = None if key is None else self._known.get(key)
        if found is None:
            found = self._bb.emit(flat, name_hint or self._name)
            if key is not None:
                self._known[key] = found
        return found

    def emit_te(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return self.emit(self._bb.call_te(func, *args, **kwargs))

    def match_cast(self, value: Any, ty: Any, name_hint: str = "") -> Any:
        return self._bb.match_cast(self._atom(value), ty, name_hint or self._name)

    def _flat(self, expr: Any) -> Any:
        if is_a(expr, relax.Call):
            old = items(expr.args)
            new = [self._atom(arg) for arg in old]
            return expr if all(map(is_, old, new)) else with_args(expr, new)
        if is_a(expr, relax.TupleGetItem):
            return relax.TupleGetItem(self._atom(expr.tuple_value), expr.index)
        return relax.Tuple([self._atom(f) for f in items(expr.fields)]) if is_a(expr, relax.Tuple) else expr

    def _atom(self, expr: Any) -> Any:
        if is_a(expr, (relax.Call, relax.TupleGetItem)):
            return self.emit(expr)
        return self._flat(expr) if is_a(expr, relax.Tuple) else expr


def _is_comparable(expr: Any) -> bool:
    """Whether it is a call without large constants, whose numbers would be read, of what TVM knows."""
    if not is_op_call(expr) or (expr.op.name.startswith("relax.call_") and expr.op.name != "relax.call_tir"):
        return False
    return all(not is_constant(a) or math.prod(static_shape(a.ty) or ()) <= _MOST_COMPARED for a in items(expr.args))


def _expander(func: relax.Function, ops: Iterable[str]) -> Replace:
    nodes = (func.attrs or {}).get(NODES_ATTR) or {}  # variable → node, as the importer noted it
    known: ByIdentity[dict[StructuralKey, Any]] = ByIdentity()  # variable → calls of its block that are made
    for block in blocks_in(func):
        in_block: dict[StructuralKey, Any] = {}
        known.update((binding.var, in_block) for binding in items(block.bindings))

    def replace(bb: relax.BlockBuilder, call: Any, var: Any) -> Any:
        if not is_op_call(call) or call.op.name not in ops:
            return None
        name = var.name
        node = str(nodes.get(name, name))
        return expanded(_Builder(bb, name, known.get(var, {})), bb.normalize(call), node)

    return replace


def expand(mod: tvm.IRModule, ops: Callable[[relax.Function], Iterable[str]] = whole_ops) -> tvm.IRModule:
    """The module with these operators of its host functions expanded; ``mod`` itself where there are none.

    ``ops(func)`` gives the names of the Relax operators; by default those of all that are kept whole.
    """
    found = {gv: set(ops(func)) for gv, func in mod.functions.items() if is_host_function(func)}
    if not any(found.values()):
        return mod
    for gv, names in found.items():
        if names:
            mod = rewrite_calls_in(mod, [gv], _expander(mod[gv], names))
    return tvm.transform.Sequential([relax.transform.CanonicalizeBindings(), relax.transform.DeadCodeElimination()])(
        mod
    )


@tvm.transform.module_pass(opt_level=0, name="ExpandOperators")
def Expand(mod: tvm.IRModule, _context: Any) -> tvm.IRModule:
    return expand(mod)


DOMAIN, NAME = "tvm_byoc_dnnl", "CachedAttention"
#: the Relax operator
CACHED_ATTENTION = reserve(DOMAIN, NAME)
#: those that the importer declares with its first model, before which vendors are registered: domain → names
DECLARED_LATER = {
    DOMAIN: (NAME,),
    "": ("Attention", "RMSNormalization", "RotaryEmbedding", "SimplifiedLayerNormalization"),
    "com.microsoft": (
        *("Attention", "CausalConvWithState", "EmbedLayerNormalization", "GatherBlockQuantized", "GroupNorm"),
        *("GroupQueryAttention", "MatMulBnb4", "MatMulNBits", "MoE", "MultiHeadAttention", "QAttention", "QMoE"),
        *("RotaryEmbedding", "SkipGroupNorm", "SkipLayerNormalization", "SkipSimplifiedLayerNormalization"),
    ),
}
for _domain, _names in DECLARED_LATER.items():
    for _name in _names:
        reserve(_domain, _name)

_LEAST = np.finfo("float32").tiny  # as a scale: its inverse is finite


def rounded(x: Any, block: int) -> relax.Call:
    """A float32 tensor whose rows, along its last axis, are rounded in blocks that divide them."""
    return _OPERATOR.call([x], {"block": block}, [True], "")


def block_of(call: Any) -> int:
    return int(call.attrs["block"])


def _built(bb: relax.BlockBuilder, call: Any, _node: str) -> Any:
    x, block = call.args[0], block_of(call)
    dims = shape_dims(x.ty) or []
    blocks = bb.emit(R.reshape(x, [*dims[:-1], int(dims[-1]) // block, block]))
    largest = bb.emit(R.max(bb.emit(R.abs(blocks)), axis=-1, keepdims=True))
    unit = bb.emit(R.divide(largest, make_constant(np.float32(127))))
    scale = bb.emit(R.maximum(unit, make_constant(np.float32(_LEAST))))
    inverse = bb.emit(R.divide(make_constant(np.float32(1)), scale))
    whole = bb.emit(R.round(bb.emit(R.multiply(blocks, inverse))))
    return bb.emit(R.reshape(bb.emit(R.multiply(whole, scale)), dims))


_OPERATOR = Operator("tvm_byoc_dnnl", "RoundedBlocks", _built, lambda call: [call.args[0].ty])
declare(_OPERATOR)
#: the Relax operator
ROUNDED = _OPERATOR.relax_name


def relu_of_numbers(x: Any) -> relax.Call:
    """The larger of ``x`` and 0, and 0 for a NaN."""
    return _RELU.call([x], {}, [True], "")


def _relu(bb: relax.BlockBuilder, call: Any, _node: str) -> Any:
    x = call.args[0]
    zero = make_constant(np.zeros((), dtype_of(x.ty)))
    return bb.emit(R.where(bb.emit(R.greater(x, zero)), x, zero))


_RELU = Operator("tvm_byoc_dnnl", "ReluOfNumbers", _relu, lambda call: [call.args[0].ty])
declare(_RELU)
#: the Relax operator
RELU_OF_NUMBERS = _RELU.relax_name
