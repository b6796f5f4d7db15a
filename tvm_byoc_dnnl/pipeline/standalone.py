"""A model as source: a module whose ``main`` is one call of one region, with which argument and result is whose."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import tvm
from tvm import relax

from ..core.errors import InputError, UnsupportedError
from ..core.files import written_folder
from ..graph.graph import PortableGraph
from ..ir.relax_utils import bindings_of, codegen_of, constants_in
from ..ir.tvm_compat import constant_numpy
from ..vendors.namespace import Namespace, Standalone, told
from ..vendors.namespaces import namespace
from ..vendors.portable import lower_region, with_checksums

_NEEDS = "a stand-alone program needs `main` to be one call of one region"


def emit(mod: tvm.IRModule, out_dir: str | PathLike[str]) -> list[Path]:
    """Write a partitioned module as source that needs the vendor's library alone, and neither Python nor TVM.

    The program makes the calls that the compiled module makes, for this machine's CPU and number of threads.

    Parameters
    ----------
    mod : IRModule
        What `partition` returned; ``main`` is one call of one region.
    out_dir : path
        Folder for the files; made when it does not exist, files of the same names are overwritten.

    Returns
    -------
    list of Path
        ``<region>.c``, and the files that the namespace adds to make a program of it.

    Raises
    ------
    InputError
        If ``mod`` is no IRModule.
    UnsupportedError
        If ``main`` is more than one call of one region, has symbolic shapes, or works in a layout that cannot be
        said in source.
    ExportError
        If the files cannot be written; then those that were there are still as they were.
    NativeLibraryError
        Without the native library, which plans the program.
    """
    main, call, func = _only_region(mod)
    ns = namespace(codegen_of(func))
    if ns.emit is None:
        raise UnsupportedError(f"{call.op.name_hint} belongs to {ns.name!r}, which emits no source")
    arguments = _arguments(main, call)
    graph, constants = _lower(ns, func, str(func.attrs["global_symbol"]))
    program = Standalone(graph, told(ns, "emit", graph), constants, arguments, _results(main, call, len(graph.outputs)))
    folder = Path(out_dir)
    with written_folder(folder) as aside:
        source = aside / f"{graph.name}.c"
        source.write_text(program.source)
        others = () if ns.write_program is None else told(ns, "write_program", program, aside)
        files = [source, *others]
    return [folder / file.name for file in files]


def _only_region(mod: tvm.IRModule) -> tuple[relax.Function, Any, relax.Function]:
    """``main``, its only call, and the region that this calls."""
    if not isinstance(mod, tvm.IRModule):
        raise InputError(f"mod is a {type(mod).__name__}, expected an IRModule as `partition` returns it")
    main = next((f for gv, f in mod.functions.items() if gv.name_hint == "main"), None)
    if not isinstance(main, relax.Function):
        raise UnsupportedError(f"the module has no Relax function `main`: {_NEEDS}. Partition the model first")
    call = _only_call(mod, main)
    return main, call, mod[call.op]


def _only_call(mod: tvm.IRModule, main: relax.Function) -> Any:
    calls: list[Any] = []
    others: list[str] = []
    for _, value in bindings_of(main):
        if not isinstance(value, relax.Call):
            continue
        if isinstance(value.op, tvm.ir.GlobalVar) and codegen_of(mod[value.op]):
            calls.append(value)
        else:
            others.append(str(getattr(value.op, "name", value.op)))
    if others or len(calls) != 1:
        left = f", and {len(others)} that stay with TVM ({', '.join(sorted(set(others)))})" if others else ""
        raise UnsupportedError(
            f"`main` makes {len(calls)} calls of regions{left}; {_NEEDS}. "
            "Export the compiled model as a library instead, or see `explain` for why calls stay with TVM"
        )
    return calls[0]


def _lower(ns: Namespace, func: relax.Function, symbol: str) -> tuple[PortableGraph, list[Any]]:
    names = {constant: f"{symbol}_const_{n}" for n, constant in enumerate(dict.fromkeys(constants_in(func)))}
    values = {name: constant for constant, name in names.items()}
    graph = with_checksums(lower_region(ns, func, symbol, names), names)
    return graph, [constant_numpy(values[c.name]) for c in graph.constants]


def _arguments(main: relax.Function, call: Any) -> list[int]:
    sources = _sources(main, {param: ("parameter", i) for i, param in enumerate(main.params)})
    found = [sources.get(arg) for arg in call.args]
    for position, source in enumerate(found):
        if source is None:
            raise UnsupportedError(f"argument {position} of {call.op.name_hint} is not a parameter of `main`; {_NEEDS}")
    return [i for _, i in found]  # type: ignore[misc]


def _results(main: relax.Function, call: Any, outputs: int) -> list[int]:
    root = next(var for var, value in bindings_of(main) if value.same_as(call))
    sources = _sources(main, {root: ("result", None if outputs > 1 else 0)})
    result: Any = main.body.body
    values = dict(bindings_of(main))
    while result in values and isinstance(values[result], (relax.Var, relax.Tuple)):
        result = values[result]
    if sources.get(result) == ("result", None):
        return list(range(outputs))
    found = [sources.get(f) for f in (result.fields if isinstance(result, relax.Tuple) else [result])]
    indices = [source[1] for source in found if source is not None and source[1] is not None]
    if sorted(indices) != list(range(outputs)) or len(indices) != len(found):
        name = call.op.name_hint
        raise UnsupportedError(f"`main` does not return the results of {name}, each of them once; {_NEEDS}")
    return indices


def _sources(main: relax.Function, known: Mapping[Any, tuple[str, Any]]) -> dict[Any, tuple[str, Any]]:
    """``known`` followed through aliases and tuple items."""
    sources = dict(known)
    for var, value in bindings_of(main):
        if isinstance(value, relax.Var) and value in sources:
            sources[var] = sources[value]
        elif isinstance(value, relax.TupleGetItem) and value.tuple_value in sources:
            sources[var] = (sources[value.tuple_value][0], int(value.index))
    return sources
