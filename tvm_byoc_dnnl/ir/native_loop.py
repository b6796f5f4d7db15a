"""A loop whose number of rounds a call knows: one call of a Relax operator, then a call of the native library.

    y = byoc.loop(body, (captured …), (state …), (empty …), trips, go)

``body`` is a private function of the round's number, of the condition, the states and the captured values. It returns
the condition for the next round, the states, and what each round adds to the stacked results. ``empty`` has the shapes
of these parts, 0 where only a round knows a size: they are the shapes of results to which no round has added.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax

from ..core.errors import UnsupportedError
from .relax_utils import bindings_in, is_host_function, is_op_call, with_functions
from .tvm_compat import make_string
from .walker import rewrite_calls_in

_OP = "byoc.loop"
_LIBRARY = "tvm_byoc_dnnl"


def _define() -> tvm.ir.Op:
    """The operator, which TVM knows until the process ends."""
    if _OP not in tvm.ir.Op.list_op_names():
        tvm.ir.op._ffi_api.RegisterOp(_OP, "a loop whose number of rounds a call knows")
        op = tvm.ir.Op.get(_OP)
        op.set_attr("FInferType", lambda call, _bb: call.ty_args[0])
        op.set_attr("FPurity", True)
    return tvm.ir.Op.get(_OP)


def loop_call(
    body: Any,
    captured: Sequence[Any],
    states: Sequence[Any],
    parts: Sequence[tuple[Any, str]],
    trips: Any,
    go: Any,
    result: Any,
    node: str,
) -> relax.Call:
    """A loop: ``body`` is the function of a round, and ``node`` the name of its node, for messages.

    Every round gets ``captured``, and the first one ``states``. ``parts`` has shape and dtype of what a round adds to
    each stacked result. There are at most ``trips`` rounds; ``go`` says whether the first one runs. ``result`` is the
    type.
    """
    empty = relax.Tuple([shape for shape, _ in parts])
    dtypes = " ".join(dtype for _, dtype in parts)
    attrs = tvm.ir.make_node("ir.DictAttrs", node=node, dtypes=dtypes)
    args = [body, relax.Tuple(captured), relax.Tuple(states), empty, trips, go]
    return relax.Call(_define(), args, attrs, [result])


def native_call(name: str, arguments: Sequence[Any], ty: Any) -> relax.Call:
    """A call of a function of the native library that keeps and writes no memory of its arguments."""
    function = relax.ExternFunc(f"{_LIBRARY}.{name}")
    return relax.Call(tvm.ir.Op.get("relax.call_pure_packed"), [function, *arguments], None, [ty])


def loops_of(func: relax.Function) -> list[Any]:
    return [b.value for b in bindings_in(func) if is_op_call(b.value) and b.value.op.name == _OP]


def _lowered(bb: relax.BlockBuilder, call: Any, _var: Any) -> Any:
    if not is_op_call(call) or call.op.name != _OP:
        return None
    body, captured, states, empty, trips, go = call.args
    closure = bb.emit(relax.op.make_closure(body, captured))
    node, dtypes = (make_string(str(call.attrs[name])) for name in ("node", "dtypes"))
    args = [closure, node, trips, go, states, empty, dtypes]
    return relax.op.call_builtin_with_ctx(f"{_LIBRARY}.Loop", args, ty_args=list(call.ty_args))


def refuse_native(mod: tvm.IRModule) -> None:
    """Raise an `UnsupportedError` if the native library runs a part of a module: emitted source does without it."""
    for func in mod.functions.values():
        for binding in bindings_in(func) if is_host_function(func) else ():
            call = binding.value
            name = call.op.name if is_op_call(call) else ""
            what = str(call.attrs["node"]) if name == _OP else ""
            if name == "relax.call_pure_packed" and str(call.args[0].global_symbol).startswith(f"{_LIBRARY}."):
                is_copy = str(call.args[0].global_symbol) == f"{_LIBRARY}.Copy"
                what = "sizes that a call compares" if is_copy else "a sequence whose length a call knows"
            if what:
                raise UnsupportedError(
                    f"{what}: the native library of tvm_byoc_dnnl has it, and emitted source does without the library; "
                    'compile without output="source"'
                )


@tvm.transform.module_pass(opt_level=0, name="KeepRounds")
def KeepRounds(mod: tvm.IRModule, _context: Any) -> tvm.IRModule:
    """Pass: nothing changes the parameters of the functions of rounds from here on: they are called from outside."""
    bodies = {call.args[0] for f in mod.functions.values() if is_host_function(f) for call in loops_of(f)}
    kept = {gv: mod[gv].with_attr("global_symbol", gv.name_hint) for gv in bodies}
    return with_functions(mod, kept) if kept else mod


@tvm.transform.module_pass(opt_level=0, name="LowerLoops")
def LowerLoops(mod: tvm.IRModule, _context: Any) -> tvm.IRModule:
    """Pass: loops become calls of the native library, where purity is not checked any more.

    TVM's code generator takes a function whose closure is made for one of another library, unless it comes before.
    """
    found = {gv: loops_of(f) for gv, f in mod.functions.items() if is_host_function(f)}
    callers = [gv for gv, loops in found.items() if loops]
    if not callers:
        return mod
    first: dict[Any, None] = {}

    def place(gv: Any) -> None:
        for call in found.get(gv, ()):
            place(call.args[0])
        first.setdefault(gv)

    for gv in callers:
        place(gv)
    mod = rewrite_calls_in(mod, callers, _lowered)
    functions = {gv: mod[gv] for gv in first} | dict(mod.functions.items())
    return tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)
