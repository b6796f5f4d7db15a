"""The code of TVM's own in a model: one function that nobody calls, C as the host's code, and object files in memory.

Without any PrimFunc TVM links an empty C source instead of LLVM code, and then needs a C++ compiler and seconds to load
the model. Only an exported file needs that function, because TVM reads the target of the file from LLVM's code.

TVM sets the first value of a reduction in the first step of its loop. Without elements there is no step, and the result
would be what lay in the memory: `StartReductions`.

Where LLVM cannot write a file to its end, it ends the process. So it writes to memory, and where even files in memory
have a limit, it returns assembly as text.

Weights beside the code: one module owns the constants of all regions, and the host's large ones.

TVM's own constant loader copies them to the heap when the model is loaded, where they stay although a backend has
packed copies; above 2 GB such a file cannot be linked. The native library's module exports them as plain data, gives
views of the mapped file to backends, and releases their pages when a backend no longer needs them.

Caches that grow: an output that is an input with new rows behind it gets its memory from the region's module.

TVM's VM would allocate the output of each call and the region would copy the rows so far. The module returns a view of
a buffer with room for more rows instead, and writes only the new ones.
"""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import tvm
from tvm import relax, s_tir, te, tirx
from tvm.support import cc
from tvm_ffi import structural_map

from ..core import _native
from ..core.errors import ExportError
from ..core.files import workspace
from ..core.tvm_fast import is_a, items
from ..graph.cost import type_bytes
from ..ir.relax_utils import Origins, bindings_of, constants_in, external_modules, is_host_function, with_functions
from ..ir.tvm_compat import constant_tensor, dtype_of, is_constant
from ..ir.walker import rewrite_calls_in
from ..vendors.c_source import c_source_module, complete_c, wrap_integers

_SYMBOL = re.compile(r"^TVM_DLL int32_t __tvm_ffi_(\w+)\(", re.M)
_HOST_FUNCTION = "byoc_host_anchor"


@tvm.transform.module_pass(opt_level=0, name="AnchorHostCode")
def AnchorHostCode(mod: tvm.IRModule, _context: Any) -> tvm.IRModule:
    """Pass: a module without any PrimFunc gets such a function."""
    if any(isinstance(f, tvm.tirx.PrimFunc) for f in mod.functions.values()):
        return mod
    mod = tvm.IRModule(dict(mod.functions.items()), attrs=mod.attrs, global_infos=mod.global_infos)
    mod[_HOST_FUNCTION] = _function()
    return mod


def drop_empty_source(module: tvm.runtime.Module) -> tvm.runtime.Module | None:
    for parent in module._collect_from_import_tree(lambda part: any(map(_is_empty_source, part.imports))):
        set_imports(parent, [part for part in parent.imports if not _is_empty_source(part)])
        return parent
    return None


@tvm.transform.module_pass(opt_level=0, name="WrapIntegers")
def WrapIntegers(mod: tvm.IRModule, _context: Any) -> tvm.IRModule:
    """Pass: integers of TVM's functions wrap as their dtype says, where they become C; see `complete_host_c`."""
    return wrap_integers(mod)


def complete_host_c(module: tvm.runtime.Module) -> None:
    """Let the C that TVM wrote for an executable contain all that it uses, behind `WrapIntegers`."""
    for parent in module._collect_from_import_tree(lambda part: any(m.kind == "c" for m in part.imports)):
        set_imports(parent, [_completed(m) if m.kind == "c" else m for m in parent.imports])


def _completed(module: tvm.runtime.Module) -> tvm.runtime.Module:
    source = module.inspect_source()
    if (complete := complete_c(source)) == source:  # a vendor's own, or the empty one
        return module
    return c_source_module(complete, list(dict.fromkeys(_SYMBOL.findall(source))))


@contextmanager
def with_host_code(parent: tvm.runtime.Module, target: tvm.target.Target) -> Iterator[None]:
    rest = list(parent.imports)
    set_imports(parent, [tvm.tirx.build(tvm.IRModule({_HOST_FUNCTION: _function()}), target=target), *rest])
    try:
        yield
    finally:
        set_imports(parent, rest)


def _is_empty_source(module: tvm.runtime.Module) -> bool:
    return module.kind == "c" and not module.inspect_source().strip("; \n")


def _function() -> tvm.tirx.PrimFunc:
    x = te.placeholder((1,), "float32", name="x")
    func = te.create_prim_func([x, te.compute((1,), lambda i: x[i], name="y")])
    return func.with_attr("global_symbol", _HOST_FUNCTION)


def set_imports(module: tvm.runtime.Module, parts: list[tvm.runtime.Module]) -> None:
    module.clear_imports()
    for part in parts:
        module.import_module(part)


@tvm.transform.module_pass(opt_level=0, name="StartReductions")
def StartReductions(mod: tvm.IRModule, _context: Any) -> tvm.IRModule:
    """Set the first values of reductions whose number of elements only a call knows in front of their loops."""
    functions = {gv: f for gv, f in mod.functions.items() if is_a(f, tirx.PrimFunc) and _is_open(f)}
    return with_functions(mod, {gv: _started(f) for gv, f in functions.items()}) if functions else mod


def _is_open(func: tirx.PrimFunc) -> bool:
    root = getattr(func.body, "block", None)  # what is written as statements has none of this name
    dims = (dim for p in func.params for dim in items(getattr(p, "shape", ())))
    return root is not None and root.name_hint == "root" and not all(is_a(dim, tirx.IntImm) for dim in dims)


def _started(func: tirx.PrimFunc) -> tirx.PrimFunc:
    schedule = s_tir.Schedule(func)
    for block in schedule.get_child_blocks(schedule.get_sblock("root")):
        made, loops = schedule.get(block), schedule.get_loops(block)
        reduced = [i for i, v in enumerate(items(made.iter_vars)) if v.iter_type == tirx.IterVar.CommReduce]
        if made.init is None or len(loops) != len(made.iter_vars):  # a schedule of the user's
            continue
        if any(not is_a(made.iter_vars[i].dom.extent, tirx.IntImm) for i in reduced):
            schedule.decompose_reduction(block, loops[reduced[0]])
    return schedule.mod["main"]


@tvm.transform.module_pass(opt_level=0, name="DropSequenceMarks")
def DropSequenceMarks(mod: tvm.IRModule, _context: Any) -> tvm.IRModule:
    """Remove the mark that TVM puts around statements in sequence: LLVM's code generator warns of each on the standard
    error, and does nothing else with it."""

    def unmarked(statement: tirx.AttrStmt) -> Any:
        return statement.body if statement.attr_key == "pragma_scope" else statement

    functions = {gv: f for gv, f in mod.functions.items() if is_a(f, tirx.PrimFunc)}
    return with_functions(
        mod,
        {gv: f.with_body(structural_map(f.body, [(tirx.AttrStmt, unmarked)])) for gv, f in functions.items()},
    )


_LLVM = "llvm"
#: LLVM names source files in the way of DWARF 5
_ASSEMBLE = ("-c", "-Wa,-gdwarf-5", "-x", "assembler", "-")
_LINES_SHOWN = 2
_Pack = Callable[[Any, bool, str, str], str]


@contextmanager
def objects_in_memory(
    module: tvm.runtime.Module, fcompile: Callable[..., Any] | None = None, compiler: str | None = None
) -> Iterator[_Pack | None]:
    """Inside, LLVM's modules among the imports of ``module`` are exported from memory.

    Yields ``fpack_imports`` for TVM's ``export_library``; None for a system library, or where ``fcompile`` links other
    files.
    """
    found = module._collect_from_import_tree(lambda part: part.kind == _LLVM)
    other = hasattr(fcompile, "object_format") or not _native.available()
    if other or any(part.get_function("__tvm_is_system_module")() for part in found):
        yield None
        return
    target = str(found[0].get_function("_get_target_string")()) if found else json.dumps({"kind": _LLVM})

    def pack(packed: Any, is_system_library: bool, prefix: str, folder: str) -> str:
        made = tvm.get_global_func("runtime.ModulePackImportsToLLVM")(packed, is_system_library, target, prefix)
        path = os.path.join(folder, f"{prefix}devc.o")
        _in_memory(made, compiler).write_to_file(path)
        return path

    parents = module._collect_from_import_tree(lambda part: any(p.kind == _LLVM for p in part.imports))
    before = [(parent, list(parent.imports)) for parent in parents]
    try:
        for parent, imports in before:
            set_imports(parent, [_in_memory(p, compiler) if p.kind == _LLVM else p for p in imports])
        yield pack
    finally:
        for parent, imports in before:
            set_imports(parent, imports)


def _in_memory(module: tvm.runtime.Module, compiler: str | None) -> tvm.runtime.Module:
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    data = _object(module) if limit == resource.RLIM_INFINITY else _assembled(module, compiler)
    return _native.function("tvm_byoc_dnnl.ObjectModuleCreate")(data, module, "", _LLVM)


def _object(module: tvm.runtime.Module) -> bytes:
    with os.fdopen(os.memfd_create("tvm_byoc_dnnl.o"), "rb") as file:
        module.write_to_file(f"/proc/self/fd/{file.fileno()}", "o")
        return file.read()


def _assembled(module: tvm.runtime.Module, compiler: str | None) -> bytes:
    """The object file by way of the assembler, whose failures are errors."""
    with workspace() as folder:
        path = Path(folder, "code.o")
        command = [compiler or cc.get_cc() or "c++", *_ASSEMBLE, "-o", str(path)]
        text = module.inspect_source("asm").encode()
        done = subprocess.run(command, input=text, capture_output=True, check=False)
        if done.returncode or not path.is_file():
            lines = done.stderr.decode(errors="replace").splitlines()
            said = "; ".join(lines[:_LINES_SHOWN]) or f"status {done.returncode}"
            raise ExportError(f"the code cannot be assembled: {said}; files may have a limit of size here (ulimit -f)")
        return path.read_bytes()


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
