"""Functions of Relax in the making: one dataflow block if that is possible, and which node made which variable."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvm import relax

from ...core.tvm_fast import items
from ...ir.signature import NODES_ATTR
from ...ir.tvm_compat import is_a, var_name
from .scope import PlainBlocks

__all__ = ["built_function"]


def built_function(
    bb: relax.BlockBuilder,
    name: str,
    params: Sequence[relax.Var] | None,
    read: Callable[[bool], tuple[Any, Any, Mapping[str, str]]],
    *,
    private: bool = False,
) -> Any:
    """A new function of a builder's module, by its variable.

    Parameters
    ----------
    params : sequence of Var, optional
        Its parameters; ``None`` if ``read`` finds them.
    read : function
        ``read(is_dataflow)`` emits the body. It returns the parameters, the results as one expression, and the names of
        the nodes by the last variable of each. It raises `PlainBlocks` if the body cannot be one dataflow block.
    """
    for is_dataflow in (True, False):
        try:
            with bb.function(name, params, private=private):
                with bb.dataflow() if is_dataflow else contextlib.nullcontext():
                    own, result, node_of = read(is_dataflow)
                    result = bb.emit_output(result) if is_dataflow else result
                made = bb.emit_func_output(result, None if params is not None else own)
        except BaseException as error:
            bb._end_block()
            bb.end_scope()
            if not isinstance(error, PlainBlocks):
                raise
        else:
            func = bb.get()[made]
            bb.update_func(made, func.with_attr(NODES_ATTR, _nodes_by_variable(func, node_of)))
            return made
    raise AssertionError


def _nodes_by_variable(func: relax.Function, node_of: Mapping[str, str]) -> dict[str, str]:
    """Variable to node, for every variable of the imported function that comes from a node with a name."""
    found: dict[str, str] = {}
    waiting: list[str] = []
    for block in items(func.body.blocks):
        for binding in items(block.bindings):
            name = var_name(binding.var)
            if is_a(binding.value, relax.Var) and var_name(binding.value) in found:
                found[name] = found[var_name(binding.value)]
                continue
            waiting.append(name)
            if name in node_of:
                found.update(dict.fromkeys(waiting, node_of[name]))
                waiting = []
    return {variable: node for variable, node in found.items() if node}
