"""Routes, by which regions become code: the three methods that the engine calls; and codegens as routes, the functions
that TVM's RunCodegen calls for the regions of a namespace.

RunCodegen itself leaves the regions of a private function as they are, and does not come back from a recursive one.
"""

from __future__ import annotations

import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import tvm
import tvm_ffi
from tvm import relax
from tvm.support import cc

from ..core import _native
from ..core.compilation import current
from ..core.errors import NativeLibraryError, UnsupportedError
from ..core.files import workspace
from ..core.own_process import apart
from ..core.verdict import BrokenRegions, Failure, Reject, all_or_each, calling, describe
from ..ir.fingerprint import fingerprint
from ..ir.relax_utils import codegen_of, constant_numpy, constants_in, external_modules, is_host_function, leaf_types
from ..ir.tvm_compat import constant_tensor
from ..ir.walker import rewrite_blocks, rewrite_calls
from .devices import with_residents

_LINES_SHOWN = 8
_Made = TypeVar("_Made")


#: the code of a region: a runtime module of the vendor's, or C source
OUTPUTS = ("module", "source")


@dataclass(frozen=True)
class SourceBuild:
    """The headers and libraries for the source modules of a namespace.

    Attributes
    ----------
    include : sequence of Path
        Folders of headers, besides those of TVM.
    libraries : sequence of Path
        Shared libraries. The linked library looks for them in its own folder first, then where they are now.
    flags : sequence of str
        Further options, for the compiler and for the linker.
    """

    include: Sequence[Path] = ()
    libraries: Sequence[Path] = ()
    flags: Sequence[str] = ()

    @property
    def include_options(self) -> list[str]:
        """The folders of headers, TVM's own included."""
        of_tvm = tvm.libinfo.find_include_path(), tvm_ffi.libinfo.find_include_path()
        folders = [*self.include, *of_tvm, tvm_ffi.libinfo.find_dlpack_include_path()]
        return [f"-I{folder}" for folder in dict.fromkeys(folders)]

    @property
    def compile_options(self) -> list[str]:
        """For the compiler. The time-consuming code is inside of the libraries."""
        return ["-O1", *self.flags, *self.include_options]

    @property
    def link_options(self) -> list[str]:
        """For the linker; they may stand in front of the object files."""
        places = ["$ORIGIN", *dict.fromkeys(str(path.parent) for path in self.libraries)]
        return [
            *self.flags,
            "-Wl,--push-state,--no-as-needed",
            *map(str, self.libraries),
            "-Wl,--pop-state",
            *(f"-Wl,-rpath,{place}" for place in places),
        ]

    def check(self) -> None:
        """Find out now whether anything can be compiled.

        Raises `NativeLibraryError` if something is missing; it names the compiler, the headers, or the library.
        """
        if not cc.get_cc():
            raise NativeLibraryError(
                "source output needs a C++ compiler and none was found (searched $CXX, g++, gcc, clang++, clang on "
                "PATH); install one, or use output='module'"
            )
        missing = [path for path in (*self.include, *self.libraries) if not path.exists()]
        if missing:
            raise NativeLibraryError(
                f"source output needs {', '.join(map(str, missing))}, which does not exist; reinstall the package "
                "(pip install --force-reinstall tvm-byoc-dnnl), or use output='module'"
            )


def check_sources(modules: Sequence[tvm.runtime.Module], builds: Sequence[SourceBuild] = ()) -> None:
    """Let the C++ compiler read all modules of source; `RuntimeError` has its first messages, or that it lacks."""
    sources = [m.inspect_source() for m in modules if m.kind == "c"]
    if not sources:
        return
    compiler = cc.get_cc()
    if not compiler:
        raise RuntimeError("the codegen made C source and there is no C++ compiler; install g++ or clang++")
    options = [option for build in [*builds, SourceBuild()] for option in build.compile_options]
    with workspace() as folder:
        files = []
        for number, source in enumerate(sources):
            files.append(folder / f"source_{number}.cc")
            files[-1].write_text(source)
        command = [compiler, "-fsyntax-only", "-w", *dict.fromkeys(options), *map(str, files)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            said = result.stderr.replace(f"{folder}/", "").splitlines()
            raise RuntimeError("\n".join([f"{Path(compiler).name}:", *said[:_LINES_SHOWN]]))


def missing_functions(module: tvm.runtime.Module, symbols: Iterable[str]) -> list[str]:
    """The functions that a module does not have: source does not contain their names; objects cannot be asked."""
    if module.kind == "c":
        source = module.inspect_source()
        return [symbol for symbol in symbols if symbol not in source]
    return [symbol for symbol in symbols if module.is_runnable() and not module.implements_function(symbol)]


#: ``times(codegen, graph)``: the known times of the candidates in a graph, as `tune` has measured them
Times = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Terms:
    """What a build is given for its routes, beside the options of a namespace."""

    times: Times | None = None
    #: gets the regions (by symbol) that became modules although source was asked for, and why; ``None`` to raise
    not_source: dict[str, str] | None = None


NO_TERMS = Terms()


class Route(ABC):
    """The way in which the regions of a namespace become code."""

    compiler: str
    makes_source: bool = False  #: whether `source` may succeed
    compiles: bool = True  #: whether `attempt` runs a compiler of the vendor's, which may take long
    source_build: Callable[[], SourceBuild] | None = None

    @abstractmethod
    def attempt(self, region: relax.Function, options: Mapping[str, Any], *, fully: bool = False) -> Failure | None:
        """What is wrong with a region, tried cheaply or as `build` does (``fully``); ``options`` have their defaults.

        `NativeLibraryError` where a library is missing: nothing that another compiler could do better.
        """

    @abstractmethod
    def build(self, mod: tvm.IRModule, options: Mapping[str, Any], terms: Terms) -> tvm.IRModule:
        """The module with calls of runtime modules, or of PrimFuncs, in place of its regions; or `BrokenRegions`."""

    def source(self, region: relax.Function, symbol: str, options: Mapping[str, Any]) -> tvm.runtime.Module:
        """The region as a source module of that name; `UnsupportedError` if it cannot be said in source."""
        raise UnsupportedError(f"{self.compiler!r} makes modules only")


def with_external_calls(
    mod: tvm.IRModule,
    regions: Mapping[Any, relax.Function],
    modules: Sequence[tvm.runtime.Module],
    names: Mapping[Any, str],
    on_device: bool = False,
) -> tvm.IRModule:
    """The module without ``regions``, which are called in ``modules`` instead.

    ``names`` are those of `name_constants`. ``on_device`` says whether values stay on a device from region to region.
    The modules are in ``external_mods``, and the constants in ``const_name_to_constant``, where TVM's linker looks for
    both.
    """
    symbols = {gv: str(f.attrs["global_symbol"]) for gv, f in regions.items()}

    def external(_builder: Any, call: Any, _var: Any) -> Any:
        if call.op not in symbols:
            return None
        arguments = [relax.ExternFunc(symbols[call.op]), relax.Tuple(list(call.args))]
        return relax.Call(tvm.ir.Op.get("relax.call_dps_packed"), arguments, None, [call.ty])

    functions = {gv: f for gv, f in mod.functions.items() if gv not in regions}
    for gv, func in functions.items():
        if is_host_function(func) and not regions.keys().isdisjoint(relax.analysis.all_global_vars(func)):
            resident = rewrite_blocks(func, partial(with_residents, symbols)) if on_device else func
            functions[gv] = rewrite_calls(resident, external)
    attrs = dict(mod.attrs.items()) if mod.attrs else {}
    attrs["external_mods"] = [*external_modules(mod), *modules]
    if names:
        tensors = {name: constant_tensor(constant) for constant, name in names.items()}
        attrs["const_name_to_constant"] = {**attrs.get("const_name_to_constant", {}), **tensors}
    return tvm.IRModule(functions, global_infos=mod.global_infos).with_attrs(attrs)


def name_constants(functions: Iterable[relax.Function]) -> dict[Any, str]:
    """Names for the constants of regions, as RunCodegen gives them; one that several share keeps its last name."""
    return {
        constant: f"{func.attrs['global_symbol']}_{codegen_of(func)}_const_{count}"
        for func in functions
        for count, constant in enumerate(constants_in(func.body))
    }


class Codegen(Route):
    #: whether its modules are blobs whose values stay on a device from region to region
    on_device: bool = False

    def __call__(
        self,
        functions: Sequence[relax.Function],
        options: Mapping[str, Any] | None,
        constant_names: Mapping[Any, str],
        terms: Terms = NO_TERMS,
    ) -> Sequence[tvm.runtime.Module]:
        """``RunCodegen`` calls this, without ``terms``: one module per function."""
        raise NotImplementedError

    def attempt(self, region: relax.Function, options: Mapping[str, Any], *, fully: bool = False) -> Failure | None:
        """See `Route.attempt`; a codegen can only be run."""
        named = region.with_attr({"Codegen": self.compiler, "global_symbol": "trial"})
        try:
            self._generate([named], options, Terms(not_source={}))  # a module instead of source is no failure
        except NativeLibraryError:
            raise
        except Exception as error:
            return Failure("codegen", describe(error))
        return None

    def build(self, mod: tvm.IRModule, options: Mapping[str, Any], terms: Terms) -> tvm.IRModule:
        regions = {gv: f for gv, f in mod.functions.items() if codegen_of(f) == self.compiler}
        made, errors, together = all_or_each(
            list(regions), lambda some: self._generate([regions[gv] for gv in some], options, terms)
        )
        if together is None:
            return with_external_calls(mod, regions, *made[0][1], self.on_device)
        if not errors and len(regions) == 1:
            raise together  # not a fault of the region: the same works now
        if errors:
            raise BrokenRegions({gv: Failure("codegen", describe(error)) for gv, error in errors.items()}) from together
        failure = Failure("codegen", f"all regions of the module together: {describe(together)}")
        raise BrokenRegions(dict.fromkeys(regions, failure), failure) from together

    def _generate(
        self, regions: Sequence[relax.Function], options: Mapping[str, Any], terms: Terms
    ) -> tuple[list[tvm.runtime.Module], dict[Any, str]]:
        names = name_constants(regions)
        # Not `tvm_ffi.convert`, which first asks each class of TVM whether a list or a dict is its own
        with calling(f"the codegen of {self.compiler!r}", around=regions):
            made: Any = self(tvm_ffi.Array(regions), tvm_ffi.Map(options), tvm_ffi.Map(names), terms)
        modules = list(made) if isinstance(made, Sequence) else []
        if len(modules) != len(regions) or not all(isinstance(m, tvm.runtime.Module) for m in modules):
            count = f"expected {len(regions)} runtime module(s)"
            raise Reject(f"the codegen of {self.compiler!r} returned {made!r}; {count}")
        if self.on_device and (other := next((m.kind for m in modules if not _is_blob(m)), "")):
            raise Reject(f"a region of {self.compiler!r} is a module of kind {other}; memory= is for byoc.blob_module")
        if any(module.kind == "c" for module in modules):
            check_sources(modules, [self.source_build()] if self.source_build is not None else [])
        for region, module in zip(regions, modules, strict=True):
            for missing in missing_functions(module, [str(region.attrs["global_symbol"])]):
                raise Reject(f"the module that the codegen of {self.compiler!r} returned has no function {missing}")
        return [_counted(module, region) for module, region in zip(modules, regions, strict=True)], names


def _counted(module: tvm.runtime.Module, region: relax.Function) -> tvm.runtime.Module:
    """A module of a library's own bytes that has its region's name, and knows the number of results for checks."""
    if not _is_blob(module):
        return module
    results = len(leaf_types(region.ret_ty))
    return _native.function("tvm_byoc_dnnl.BlobNamed")(module, str(region.attrs["global_symbol"]), results)


def _is_blob(module: tvm.runtime.Module) -> bool:
    return module.kind == "byoc_blob"


def _content(region: relax.Function, options: Mapping[str, Any]) -> str:
    """A name for all that a codegen sees of a region but its symbol, in every process."""
    values = map(constant_numpy, constants_in(region.body))
    return fingerprint([_structure(region), dict(options), *values], "a region")


def _structure(region: relax.Function) -> int:
    return tvm_ffi.structural_hash(region.without_attr("global_symbol"), skip_tensor_content=True)


def region_key(what: Any, region: relax.Function, options: Mapping[str, Any] | None) -> tuple[Any, ...]:
    """The key in `Compilation.regions` of ``what`` is known of regions with these calls, constants and options.

    Constants are told apart by their addresses: the entry keeps its region, so that none come to lie there later.
    """
    constants = tuple(map(hash, constants_in(region.body)))
    chosen = frozenset((str(name), value) for name, value in (options or {}).items())
    return what, _structure(region.without_attr("Codegen")), constants, chosen


def once(what: Any, region: relax.Function, options: Mapping[str, Any] | None, make: Callable[[], _Made]) -> _Made:
    """``make()``, called once in a compilation for regions of one content."""
    known = current().regions
    if known is None:
        return make()
    key = region_key(what, region, options)
    if key not in known:
        known[key] = make(), region
    return known[key][0]


def attempt(route: Route, region: relax.Function, options: Mapping[str, Any], *, fully: bool = False) -> Failure | None:
    """`Route.attempt`, made once, as some codegens compile the region for it."""
    what = ("attempt", route.compiler, fully)
    return once(what, region, options, lambda: route.attempt(region, options, fully=fully))


def _plain(made: Any) -> Any:
    return list(made) if isinstance(made, Sequence) else made


@dataclass(frozen=True)
class OwnCodegen(Codegen):
    """A vendor's own function; without one, the function that TVM knows as ``relax.ext.<compiler>``.

    With ``isolate`` each call of it is made in a process of its own. Bytes that it has compiled are used again for a
    region of equal content: in the same compilation, and with a ``cache_dir`` in later ones.
    """

    compiler: str
    function: Callable[..., Sequence[tvm.runtime.Module]] | None = None
    isolate: bool = False
    on_device: bool = False

    def __call__(
        self, functions: Any, options: Any, constant_names: Any, terms: Terms = NO_TERMS
    ) -> Sequence[tvm.runtime.Module]:
        function = self.function or tvm.get_global_func(f"relax.ext.{self.compiler}", allow_missing=True)
        if function is None:
            raise Reject(f"{self.compiler!r} has registered no codegen")
        if not self.isolate:
            return function(functions, options, constant_names)
        return apart(lambda: _plain(function(functions, options, constant_names)), f"the codegen of {self.compiler!r}")

    def _generate(
        self, regions: Sequence[relax.Function], options: Mapping[str, Any], terms: Terms
    ) -> tuple[list[tvm.runtime.Module], dict[Any, str]]:
        known, kept = current().regions, current().kept
        known = {} if known is None else known
        keyed = [(region_key(self, region, options), region) for region in regions]
        for key, region in keyed if kept else ():
            if key not in known and (module := kept.region(self.compiler, _content(region, options))):
                known[key] = module, region
        new = [region for key, region in keyed if key not in known]
        made = iter(super()._generate(new, options, terms)[0] if new else ())
        modules = [_counted(known[key][0], region) if key in known else next(made) for key, region in keyed]
        for (key, region), module in zip(keyed, modules, strict=True):
            if key not in known and _is_blob(module):
                known[key] = module, region
                if kept:
                    kept.keep_region(self.compiler, _content(region, options), module)
        return modules, name_constants(regions)

    def attempt(self, region: relax.Function, options: Mapping[str, Any], *, fully: bool = False) -> Failure | None:
        """See `Route.attempt`; a codegen that is not registered yet is an error only in the build."""
        return super().attempt(region, options) if fully or self.function is not None else None
