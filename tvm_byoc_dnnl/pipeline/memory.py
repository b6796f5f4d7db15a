"""Memory that TVM's VM does not own: weights beside the code, and caches that grow.

TVM's own constant loader copies constants to the heap when the model is loaded, where they stay although a backend has
packed copies; above 2 GB such a file cannot be linked. One module of the native library owns the constants of all
regions, and the host's large ones: it exports them as plain data, gives views of the mapped file to backends, and
releases their pages when a backend no longer needs them.

An output that is an input with new rows behind it gets its memory from the region's module. TVM's VM would allocate the
output of each call and the region would copy the rows so far. The module returns a view of a buffer with room for more
rows instead, and writes only the new ones.

TVM's paged caches, which `relax.frontend.nn` makes, take functions for attention over their pages.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import tvm
from tvm import relax

from ..core import _native
from ..core.tvm_fast import items
from ..graph.cost import type_bytes
from ..ir.relax_utils import Origins, bindings_of, constants_in, external_modules, is_host_function
from ..ir.tvm_compat import constant_tensor, dtype_of, is_constant, make_string
from ..ir.walker import rewrite_calls_in
from ..partitioning.annotate import compilers_of

#: From this size on a constant of the host is read from the mapped file, by one call of a packed function, which is
#: nothing beside a kernel that reads so much; below it TVM's VM keeps a copy.
_HOST_BYTES = 1 << 16
_GETTER = "byoc_weight_{}"


@tvm.transform.module_pass(opt_level=0, name="OwnWeights")
def OwnWeights(mod: tvm.IRModule, _context: Any) -> tvm.IRModule:
    """Pass: constants go into one weights module; without the native library they stay with TVM.

    To be run where the host's constants are arguments of calls of PrimFuncs, behind RunCodegen and fusion.
    """
    if not _native.available():
        return mod
    mod, host = _lift_host_constants(mod)
    attrs = dict(mod.attrs.items()) if mod.attrs else {}
    regions: dict[str, list[str]] = {}
    owned: list[tvm.runtime.Module] = []
    others: list[tvm.runtime.Module] = []
    for module in external_modules(mod):
        wanted = _wanted_constants(module)
        (owned if wanted else others).append(module)
        regions |= wanted
    if not regions and not host:
        return mod
    constants = dict(attrs.get("const_name_to_constant", {}).items())
    names = sorted({name for wanted in regions.values() for name in wanted})
    tensors = [constants.pop(name) for name in names] + list(host.values())
    create = _native.function("tvm_byoc_dnnl.WeightsModuleCreate")
    getters = {getter: getter for getter in host}
    weights = create([*names, *host], tensors, regions, getters, owned)
    return mod.with_attrs({"external_mods": [weights, *others], "const_name_to_constant": constants})


@tvm.transform.module_pass(opt_level=0, name="OwnWeightsUnlessSource")
def OwnWeightsUnlessSource(mod: tvm.IRModule, context: Any) -> tvm.IRModule:
    """Pass: `OwnWeights`, for modules that need the native library anyway."""
    serialised = [m for m in external_modules(mod) if m.is_binary_serializable() and not m.is_compilation_exportable()]
    return OwnWeights(mod) if serialised else mod


def _wanted_constants(module: tvm.runtime.Module) -> dict[str, list[str]]:
    """Symbol and constants' names of a region's module, as TVM's constant loader asks for them; {} if it has none."""
    if module.kind == "c":
        return {}
    if not (module.implements_function("get_symbol") and module.implements_function("get_const_vars")):
        return {}
    names = [str(name) for name in module["get_const_vars"]()]
    return {str(module["get_symbol"]()): names} if names else {}


def _lift_host_constants(mod: tvm.IRModule) -> tuple[tvm.IRModule, dict[str, tvm.runtime.Tensor]]:
    """The module with its large constants returned by packed functions, and what those return."""
    tensors: dict[str, tvm.runtime.Tensor] = {}
    getters: dict[Any, str] = {}

    def lifted(bb: relax.BlockBuilder, arg: Any) -> Any:
        if isinstance(arg, relax.Tuple):
            return relax.Tuple([lifted(bb, field) for field in arg.fields])
        if not is_constant(arg) or _bytes_of(arg.ty) < _HOST_BYTES:
            return arg
        tensor = constant_tensor(arg)
        getter = getters.setdefault(tensor, _GETTER.format(len(getters)))
        tensors[getter] = tensor
        return bb.emit(relax.op.call_pure_packed(getter, ty_args=arg.ty), "weight")

    def with_lifted(bb: relax.BlockBuilder, call: Any, _var: Any) -> Any:
        """A call with large constants replaced; one that is returned stays, because the caller may write to it."""
        if not any(_bytes_of(constant.ty) >= _HOST_BYTES for constant in constants_in(call)):
            return None
        return relax.Call(call.op, [lifted(bb, arg) for arg in call.args], call.attrs, call.ty_args, call.span)

    hosts = [gv for gv, f in mod.functions.items() if is_host_function(f)]
    changed = rewrite_calls_in(mod, hosts, with_lifted)
    return (changed, tensors) if tensors else (mod, {})


def _bytes_of(ty: Any) -> int:
    return type_bytes(ty) if tvm.runtime.DataType(dtype_of(ty)).bits % 8 == 0 else 0


#: returns the positions of the inputs and of the outputs that are views of such buffers
CACHES_FUNCTION = "byoc_caches"
ALLOCATION = "relax.builtin.alloc_tensor"


@tvm.transform.module_pass(opt_level=0, name="GrowCaches")
def GrowCaches(mod: tvm.IRModule, _context: Any) -> tvm.IRModule:
    """Pass: allocations of caches that nothing else uses become calls of their modules; behind CallTIRRewrite."""
    caches = _caches(mod)
    entry = next((gv for gv in mod.get_global_vars() if gv.name_hint == "main"), None)
    if not caches or entry is None:
        return mod
    found = _Uses(mod[entry]).of_caches(caches)
    if not found:
        return mod
    taken = {cache.allocation: cache.taken for cache in found}
    bb = relax.BlockBuilder(rewrite_calls_in(mod, [entry], lambda _builder, call, _var: taken.get(call)))
    with bb.function(CACHES_FUNCTION, []):
        inputs = relax.ShapeExpr([cache.input for cache in found])
        bb.emit_func_output(relax.Tuple([inputs, relax.ShapeExpr([cache.output for cache in found])]))
    return bb.finalize()


def _caches(mod: tvm.IRModule) -> dict[str, list[list[int]]]:
    """Symbol of a region → for each cache the arguments that are the rows so far, these with the new ones, and others.

    The others say where the new rows of each sequence go.
    """
    regions = _native.regions(external_modules(mod), "caches")
    return {symbol: [list(map(int, cache)) for cache in region["caches"]()] for symbol, region in regions.items()}


_PAGED = "vm.builtin.paged_attention_kv_cache_create"
#: where the functions for a prompt, for one behind pages and for one token of each sequence are among its arguments
_ATTENTION = (15, 16, 17)


@tvm.transform.module_pass(opt_level=0, name="AttendPages")
def AttendPages(mod: tvm.IRModule, _context: Any) -> tvm.IRModule:
    """Pass: TVM's paged caches attend by an engine of the compilers, which leaves to TVM's functions what it cannot."""
    for gv, function in mod.functions.items():
        if is_host_function(function) and any(_creates_pages(value) for _, value in bindings_of(function)):
            engine = next(filter(_native.engines().__contains__, compilers_of(function, None)), None)
            mod = mod if engine is None else rewrite_calls_in(mod, [gv], functools.partial(_attended, engine))
    return mod


def _creates_pages(value: Any) -> bool:
    return isinstance(value, relax.Call) and getattr(value.op, "global_symbol", "") == _PAGED


def _attended(engine: str, bb: relax.BlockBuilder, call: Any, _var: Any) -> Any:
    if not _creates_pages(call):
        return None
    args = list(call.args)
    for place in _ATTENTION:
        fields: Any = getattr(args[place], "fields", ())
        if len(fields) == 2:  # the kind of the function, and itself; another kind has more
            of_engine = [make_string(engine), fields[1]]
            made = relax.Call(relax.ExternFunc("tvm_byoc_dnnl.PagedAttention"), of_engine, None, call.ty_args)
            args[place] = relax.Tuple([fields[0], bb.emit(made)])
    return relax.Call(call.op, args, call.attrs, call.ty_args, call.span)


class _Cache(NamedTuple):
    """An allocation, the call in its place, and the positions among the inputs and outputs of the function."""

    allocation: relax.Call
    taken: relax.Call
    input: int
    output: int


class _Uses:
    def __init__(self, function: relax.Function) -> None:
        self._params = list(function.params)
        self._origins = Origins()
        self._allocations: dict[Any, relax.Call] = {}
        self._calls: list[relax.Call] = []
        self._defined: dict[Any, int] = dict.fromkeys(self._params, 0)  # variable → its place
        self._counts: dict[Any, int] = {}
        for place, (var, value) in enumerate(bindings_of(function), 1):
            self._defined[var] = place
            if isinstance(value, relax.Call):
                self._calls.append(value)
                if getattr(value.op, "name", "") == ALLOCATION:
                    self._allocations[var] = value
                self._count(value.args)
            elif not self._origins.bind(var, value):
                self._count(2 * items(relax.analysis.free_vars(value)))  # too many users
        self._returned = list(_flat(self._origins.of(function.body.body)))

    def of_caches(self, caches: Mapping[str, list[list[int]]]) -> list[_Cache]:
        """All caches of the calls whose caches nothing else uses: a region has all of them in such buffers, or none."""
        found: list[_Cache] = []
        for call in self._calls:
            symbol = str(getattr(call.op, "global_symbol", ""))
            of_call = [
                self._cache(
                    f"{symbol}_cache_{number}", *(self._origins.of(call.args[position]) for position in positions)
                )
                for number, positions in enumerate(caches.get(symbol, ()))
            ]
            complete = [cache for cache in of_call if cache is not None]
            found += complete if len(complete) == len(of_call) else []
        return found

    def _cache(self, function: str, past: Any, present: Any, *places: Any) -> _Cache | None:
        if past not in self._params or present not in self._allocations or past in self._returned:
            return None
        if self._counts[past] != 1 or self._counts[present] != 1 or self._returned.count(present) != 1:
            return None
        if any(place not in self._defined or self._defined[place] > self._defined[present] for place in places):
            return None
        allocation = self._allocations[present]
        taken = relax.Call(relax.ExternFunc(function), [past, allocation.args[0], *places], None, [present.ty])
        return _Cache(allocation, taken, self._params.index(past), self._returned.index(present))

    def _count(self, args: Iterable[Any]) -> None:
        for arg in args:
            for origin in _flat(self._origins.of(arg)):
                self._counts[origin] = self._counts.get(origin, 0) + 1


def _flat(origin: Any) -> Iterator[Any]:
    if isinstance(origin, tuple):
        for field in origin:
            yield from _flat(field)
    elif isinstance(origin, relax.Var):
        yield origin
