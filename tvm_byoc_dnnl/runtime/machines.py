"""What runs a module: a virtual machine for each thread; and what TVM's errors say about sizes and memory."""

from __future__ import annotations

import ctypes
import logging
import re
import threading
from collections.abc import Mapping
from typing import Any

import tvm
from tvm import relax

from ..core import _native
from ..core._native import limited
from ..core.compilation import knowing
from ..core.errors import ArtifactError
from ..pipeline.metadata import read_account
from ..pipeline.regions import FALLBACK_FUNCTIONS
from ..vendors.blobs import Opening

#: TVM's messages where two sizes, which the model needs to be equal, are not
_UNEQUAL = re.compile(r"match_cast error|Mismatched .* on argument #")
NO_MEMORY = re.compile(r"std::bad_alloc|std::bad_array_new_length|vector::(reserve|_M)")
_logger = logging.getLogger("tvm_byoc_dnnl")


class Machines:
    """A module, and a virtual machine for each thread that calls it: a machine keeps its stack in itself.

    Attributes
    ----------
    pooled : bool
        Whether TVM keeps freed tensors for the next call. It keeps all of them, and finds none but those of the same
        size: where sizes are open, the memory would grow with each new one.
    """

    def __init__(
        self,
        module: tvm.runtime.Module,
        entry: str,
        threads: int | None,
        options: Mapping[str, Any],
        is_described: bool = False,
    ) -> None:
        self.module = module
        self.pooled = True
        self._entry = entry
        self._options = options
        self._is_described = is_described
        self._threads = threads
        self._local = threading.local()

    def start(self) -> relax.VirtualMachine:
        """Make the machine of the calling thread."""
        made: list[relax.VirtualMachine] = []
        self._local.entry = self._entry  # which another thread may change
        memory = "pooled" if self.pooled else "naive"
        make = limited(lambda: made.append(relax.VirtualMachine(self.module, tvm.cpu(), memory)), self._threads)
        opening = Opening(self._options, is_described=self._is_described)
        with knowing(opening=opening):
            try:
                make()  # the first machine makes the plans, which are for a number of threads
            except ArtifactError as error:
                if not self._has_host_form():
                    raise
                opening.is_described = True
                make()
                self._local.machine = made[0]
                if self._local.entry in FALLBACK_FUNCTIONS.values() or self.without_devices(error) is None:
                    raise
        self._local.machine = made[0]
        self._local.function = limited(made[0][self._local.entry], self._threads)
        return made[0]

    def function(self) -> Any:
        """The model's function on the machine of the calling thread."""
        if not hasattr(self._local, "function"):
            self.start()
        return self._local.function

    def _has_host_form(self) -> bool:
        """Whether the code has the form without devices, before a machine can be made."""
        try:
            code = str(self.module["as_text"]())
        except AttributeError:  # no executable
            return False
        return any(f"@{name}:" in code for name in FALLBACK_FUNCTIONS.values())

    def without_devices(self, error: Exception) -> Any:
        """The model's function in which TVM computes what others did, after an error; None where it has none."""
        module = self._local.machine.module
        form = next((f for f in FALLBACK_FUNCTIONS.items() if module.implements_function(f[1])), None)
        if form is None or self._local.entry != "main":
            return None
        goes_on, name = form
        if self._entry == "main":  # else another thread has said so
            _logger.warning(
                "a device failed, and TVM goes on %s: %s", "from now on" if goes_on is True else "once", error
            )
        if goes_on is True:
            self._entry = self._local.entry = name
        function = limited(self._local.machine[name], self._threads)
        if goes_on is True:
            self._local.function = function
        return function


def fault_of_sizes(message: str, is_static: bool) -> str | None:
    """What is wrong with the sizes of a call, if TVM's message says that this is the cause."""
    if _UNEQUAL.search(message):
        numbers = re.search(r"\((\d+) vs\. (\d+)\)", message)
        where = f", which needs {numbers[2]} where it has {numbers[1]}" if numbers else ""
        return f"the sizes of the inputs do not fit the model{where}"
    if NO_MEMORY.search(message) and not is_static:
        return (
            "the sizes of the inputs do not fit the model, which makes of them a tensor that is larger than the "
            "memory, or has a size below 0, as a window does that is larger than its picture"
        )
    return None


def calls_of(module: tvm.runtime.Module, error: Exception) -> str:
    """The calls of the model that are in the region of which an error tells."""
    account = read_account(module)
    region = re.match(r"region '([^']+)'", str(error))
    calls = [c for c in account.calls if c.region == region[1]] if account is not None and region else []
    names = [f"{c.name} ({c.op})" for c in calls]
    shown = ", ".join(names[:2]) + (f" … {names[-1]}, {len(names)} calls" if len(names) > 2 else "")
    return f"; the region computes {shown}" if names else ""


def give_back() -> None:
    """Free what TVM, the engines and malloc keep for later calls of this process."""
    tvm.get_global_func("vm.builtin.memory_manager.clear")()
    if _native.is_loaded():
        _native.function("tvm_byoc_dnnl.ForgetAll")()
    ctypes.CDLL(None).malloc_trim(0)
