"""C out of PrimFuncs, by TVM's own passes and generator, in which integers wrap as their dtypes do; and machine code
that a compiler made of it, as a module of an executable.

C computes with `int` what is narrower, divides by zero and shifts by any width at the program's peril, and a sum of two
ints must not overflow: a compiler that sees ``a + 1 > a`` takes it for true, and so does TVM's simplifier. NumPy's
results are defined, and the functions here have them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ..core import _native
from ..core.errors import UnsupportedError, takes
from ..core.files import read
from ..ir.tvm_compat import C_ROUNDS_TO_EVEN, buffer_loads, dtype_of

_INTEGER = re.compile(r"(u?int)(8|16|32|64)|bool")
#: TIR's nodes, and in 0.26 its calls → the functions below
_NODES = {
    "Add": "add",
    "Sub": "sub",
    "Mul": "mul",
    "Div": "div",
    "Mod": "mod",
    "FloorDiv": "floordiv",
    "FloorMod": "floormod",
    "LShift": "shl",
    "RShift": "shr",
    "BitwiseNot": "not",
}
_CALLS = {"tirx.shift_left": "shl", "tirx.shift_right": "shr", "tirx.bitwise_not": "not"}
_PREFIX = "byoc_"
_USED = re.compile(rf"(static inline \w+ )?\b{_PREFIX}(\w+?)_(u?int\d+|bool)(?:_(float\d+))?\(")
#: as TVM's generator declares a function that it does not know
_DECLARED = re.compile(rf'#ifdef __cplusplus\nextern "C"\n#endif\nTVM_DLL \w+ {_PREFIX}\w+\([\w, ]*\);\n')

#: In terms of T, a type; U, unsigned and at least as wide, and BITS. Where a divisor is 0, NumPy's result is 0, and a
#: shift by a negative number or by the width of the type, or more, shifts everything out.
_SIGNED = {
    "add": "return (T)((U)a + (U)b);",
    "sub": "return (T)((U)a - (U)b);",
    "mul": "return (T)((U)a * (U)b);",
    "div": "return b == 0 ? 0 : b == -1 ? (T)(0 - (U)a) : (T)(a / b);",
    "mod": "return b == 0 || b == -1 ? 0 : (T)(a % b);",
    "floordiv": "if (b == 0) return 0;\n  if (b == -1) return (T)(0 - (U)a);\n"
    "  return (T)(a / b - (a % b != 0 && (a < 0) != (b < 0)));",
    "floormod": "if (b == 0 || b == -1) return 0;\n  return (T)(a % b + (a % b != 0 && (a < 0) != (b < 0) ? b : 0));",
    "shl": "return (uint64_t)b < BITS ? (T)((U)a << b) : 0;",
    "shr": "return (T)(a >> ((uint64_t)b < BITS ? b : BITS - 1));",
    "not": "return (T)~a;",
}
_UNSIGNED = {
    **_SIGNED,
    "div": "return b == 0 ? 0 : (T)(a / b);",
    "mod": "return b == 0 ? 0 : (T)(a % b);",
    "floordiv": "return b == 0 ? 0 : (T)(a / b);",
    "floormod": "return b == 0 ? 0 : (T)(a % b);",
    "shr": "return (uint64_t)b < BITS ? (T)(a >> b) : 0;",
}
_BOOL = {"add": "return a || b;", "sub": "return a != b;", "mul": "return a && b;", "not": "return !a;"}
#: A number that an integer cannot hold is converted as x86 does, and with it NumPy and ONNX Runtime: to the least of a
#: type of 32 or 64 bits, of which the lowest bits are taken.
_CAST = "return a >= -LIMIT && a < LIMIT ? (T)(WIDE)a : (T)LEAST;"
_CAST_UINT64 = "if (a >= LIMIT) return a < 2 * LIMIT ? (uint64_t)a : 0;\n  return a >= -LIMIT ? (T)(WIDE)a : (T)LEAST;"


def wrap_integers(mod: tvm.IRModule) -> tvm.IRModule:
    """A module whose integer operations on tensors' elements are calls of functions that `with_definitions` defines.

    Those of less than 32 bits are all replaced, others where they depend on an element: the rest computes with loop
    variables and sizes, and C must see that these do not overflow. `UnsupportedError` if bools are divided or shifted.
    """
    functions = {gv: _wrapped(f) if isinstance(f, tirx.PrimFunc) else f for gv, f in mod.functions.items()}
    return tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def _wrapped(func: tirx.PrimFunc) -> tirx.PrimFunc:
    bound = _bound_to_data(func.body)

    def operation(node: Any) -> Any:
        name = _NODES.get(type(node).__name__) or _CALLS.get(getattr(node.op, "name", ""))
        found = _INTEGER.fullmatch(dtype := dtype_of(node.ty)) if name else None
        if not found:
            return node
        operands = list(node.args) if hasattr(node, "args") else [node.a, node.b] if hasattr(node, "b") else [node.a]
        if int(found[2] or 1) >= 32 and not any(_is_data(o, bound) for o in operands):
            return node
        if dtype == "bool" and name not in _BOOL:
            raise UnsupportedError(f"{type(node).__name__} of bool, which has no such result; cast to int8 first")
        return tirx.call_pure_extern(dtype, f"{_PREFIX}{name}_{dtype}", *operands)

    def cast(node: Any) -> Any:
        dtype, source = dtype_of(node.ty), dtype_of(node.value.ty)
        if source not in ("float32", "float64") or dtype == "bool" or not _INTEGER.fullmatch(dtype):
            return node
        return tirx.call_pure_extern(dtype, f"{_PREFIX}cast_{dtype}_{source}", node.value)

    kinds = tuple(kind for name in _NODES if (kind := getattr(tirx, name, None)))
    callbacks = [(kinds, operation), (tirx.Cast, cast), (tvm.ir.Call, operation)]
    return func.with_body(tvm_ffi.structural_map(func.body, callbacks))


def _bound_to_data(body: Any) -> list[Any]:
    bindings: list[Any] = []
    kinds = tuple({tirx.LetStmt, tirx.Let, getattr(tirx, "Bind", tirx.Let)})
    tvm_ffi.structural_walk(body, (kinds, bindings.append), order="pre")
    found: list[Any] = []
    for binding in bindings:
        if _is_data(binding.value, found):
            found.append(binding.var)
    return found


def _is_data(expr: Any, bound: list[Any]) -> bool:
    if buffer_loads(expr):
        return True
    return bool(bound) and any(v.same_as(b) for v in tirx.analysis.undefined_vars(expr) for b in bound)


def with_definitions(source: str) -> str:
    """C source behind the definitions of the functions of `wrap_integers` that it calls and does not define."""
    source = _DECLARED.sub("", source)
    used = set(_USED.findall(source))
    missing = sorted({call[1:] for call in used} - {call[1:] for call in used if call[0]})
    if not missing:
        return source
    lines = ["#include <stdbool.h>", "#include <stdint.h>", *(_definition(*call) for call in missing)]
    return "\n".join([*lines, source])


def _definition(name: str, dtype: str, source: str) -> str:
    bits = int(_INTEGER.fullmatch(dtype)[2] or 1)  # type: ignore[index]
    if name == "cast":
        body, suffix = (_CAST_UINT64 if dtype == "uint64" else _CAST), "f" if source == "float32" else ""
        wide = 32 if bits < 32 or dtype == "int32" else 64
        limit = f"{2.0 ** (wide - 1):.1f}{suffix}"
        body = body.replace("LIMIT", limit).replace("WIDE", f"int{wide}_t").replace("LEAST", f"INT{wide}_MIN")
        arguments = {"float32": "float a", "float64": "double a"}[source]
    else:
        body = (_BOOL if dtype == "bool" else _UNSIGNED if dtype.startswith("u") else _SIGNED)[name]
        arguments = "T a" if name == "not" else "T a, T b"
    title = "_".join(filter(None, (f"{_PREFIX}{name}", dtype, source)))
    text = f"static inline T {title}({arguments}) {{\n  {body}\n}}"
    text = re.sub(r"\bU\b", "uint64_t" if bits == 64 else "uint32_t", text.replace("BITS", str(bits)))
    return re.sub(r"\bT\b", dtype if dtype == "bool" else f"{dtype}_t", text)


@takes(object_file=Path, library=Path, symbols=(list, tuple))
def object_module(object_file: Path, library: Path, symbols: Sequence[str], source: str = "") -> tvm.runtime.Module:
    """A module that is run from a shared library, and exported as an object file.

    Neither file is needed afterwards. Without our native library the module can only be exported: TVM then links and
    loads the whole executable, with all its constants, before it runs it for the first time.

    Parameters
    ----------
    object_file : Path
        The object code that is linked into an exported library; position-independent.
    library : Path
        The same, linked.
    symbols : sequence of str
        The functions in them, each exported as ``__tvm_ffi_<symbol>``.
    source : str
        What ``inspect_source`` shows.

    Raises
    ------
    InputError
        If the object file cannot be read.
    OSError, ArtifactError
        If there is no such library, or it cannot be loaded: it is cut off, or was linked for another machine.
    """
    code = read(object_file, "the object code of a compiler")
    if not _native.available():
        return tvm.get_global_func("runtime.ModuleLoadStaticLibrary")(str(object_file), list(symbols))
    loaded = _native.load_library(library)
    return _native.function("tvm_byoc_dnnl.ObjectModuleCreate")(code, loaded, source, "object")


# TVM defines these in every C file that it writes, and two such files would not link into one library.
_WEAK = "".join(f"#pragma weak {symbol}\n" for symbol in ("__tvm_ffi__library_ctx", "__tvm_ffi_main"))
# `float* x = ((float*)((float*)(((DLTensor*)x_handle)[0].data)));`, as the generator writes a buffer argument.
_ARGUMENT = re.compile(r"^( +\w+\*) (\w+ = \(.*\(\(DLTensor\*\)\w+\)\[0\]\.data\)+;)$", re.M)

# The generator writes infinities like this, which is not C.
_INFINITY = re.compile(r"\binff?\b")

# Functions of C's library for which TVM's C target has no rule, or a wrong one.
_LIBRARY = {"tirx.fabs": {"float32": "fabsf", "float64": "fabs"}}
_WRONG = {} if C_ROUNDS_TO_EVEN else {"tirx.round": {"float32": "nearbyintf", "float64": "nearbyint"}}
_LIBRARY.update(_WRONG)


def _call_library(call: tvm.ir.Call) -> tvm.ir.Call | None:
    name = _LIBRARY[call.op.name].get(dtype_of(call.ty))
    return None if name is None else tirx.call_pure_extern(call.ty, name, *call.args)


#: operators of which TVM knows so much already, where this module is reloaded
_TOLD: set[str] = globals().get("_TOLD", set())

for _op in _LIBRARY.keys() - _TOLD:
    # the C target decides by this attribute
    if _op in _WRONG or tvm.ir.Op.get(_op).get_attr("default.FLowerIntrinsic") is None:
        tvm.ir.register_op_attr(_op, "c.FLowerIntrinsic", _call_library)
    _TOLD.add(_op)


@takes(mod=tvm.IRModule, target=tvm.target.Target)
def lower_tir(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """TVM's TIR pipeline for a host target, up to the code generator; for C, integers wrap (`wrap_integers`)."""
    pipeline, finalize_host, _ = tirx.get_default_tir_pipeline(target)
    if str(target.kind.name) == "c":  # before TVM simplifies, for which a sum of integers does not overflow
        mod = wrap_integers(mod)
    mod = finalize_host()(pipeline(tirx.transform.BindTarget(target)(mod)))
    for gv, func in mod.functions.items():  # a single function would be exported as the library's `main` too
        mod.update_func(gv, func.without_attr("tirx.is_entry_func"))
    return mod


@takes(mod=tvm.IRModule, target=tvm.target.Target)
def generate_c(mod: tvm.IRModule, target: tvm.target.Target) -> str:
    """C source of lowered PrimFuncs, one exported function each, that links beside other files of its kind.

    Integers wrap in every expression as their dtype says (int8: 127 + 1 is -128), where C would compute with ``int``;
    a quotient by 0 is 0, as NumPy has it.

    Parameters
    ----------
    mod : IRModule
        PrimFuncs behind `lower_tir`. Their buffers do not overlap, as TVM assumes of PrimFuncs elsewhere.
    target : Target
        Of kind ``c``.
    """
    source = tvm.get_global_func("target.build.c")(wrap_integers(mod), target).inspect_source()
    return _WEAK + _ARGUMENT.sub(r"\1 __restrict__ \2", complete_c(source))


def complete_c(source: str) -> str:
    """What TVM's generator wrote, as C that a compiler takes: with infinities, and the functions that integers need."""
    return _INFINITY.sub("INFINITY", with_definitions(source))


@takes(mod=tvm.IRModule, target=tvm.target.Target)
def c_module(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.runtime.Module:
    """`generate_c` as a module whose source is compiled when the executable is run or exported."""
    names = [gv.name_hint for gv in mod.get_global_vars()]
    return c_source_module(generate_c(mod, target), names)


@takes(source=str, symbols=(list, tuple), constant_names=(list, tuple))
def c_source_module(source: str, symbols: Sequence[str], constant_names: Sequence[str] = ()) -> tvm.runtime.Module:
    """A runtime module of C source, which is compiled when the model is run or exported.

    Parameters
    ----------
    source : str
        C that is C++ as well: TVM's compiler driver is usually g++.
    symbols : sequence of str
        The functions that it defines as ``__tvm_ffi_<symbol>``; a region's ``global_symbol`` among them.
    constant_names : sequence of str
        Constants of the region that ``__tvm_ffi___init_<symbol>`` is to get before the first call.
    """
    create = tvm.get_global_func("runtime.CSourceModuleCreate")
    return create(source, "c", list(symbols), list(constant_names))
