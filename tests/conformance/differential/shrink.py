"""Reduce a failing function to a few lines: remove ends, middles and beginnings as long as it still fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tvm import relax

from tvm_byoc_dnnl.ir.relax_utils import bindings_of, shape_dims
from tvm_byoc_dnnl.ir.tvm_compat import dtype_of

from .program import Operand, Program, Step

__all__ = ["shrink"]


def shrink(program: Program, fails: Callable[[Program], bool], attempts: int = 200) -> Program:
    """The smallest function found; every step is a function that `fails`."""
    left = attempts
    progress = True
    while progress:
        progress = False
        for smaller in _smaller(program):
            if left == 0:
                return program
            left -= 1
            if fails(smaller):
                program, progress = smaller, True
                break
    return program


def _smaller(program: Program) -> Iterator[Program]:
    """Candidates, those that take the most first."""
    if len(program.outputs) > 1:
        for name in dict.fromkeys(program.outputs):
            yield _live(replace(program, outputs=(name,)))
    for i in range(len(program.steps) - 1):  # an earlier value is the result
        if program.outputs != (f"v{i}",):
            yield _live(replace(program, outputs=(f"v{i}",)))
    types = _types(program)
    for i in reversed(range(len(program.steps))):
        name = f"v{i}"
        if name in types and name not in program.outputs:
            for other, its_type in types.items():  # the call is left out
                if its_type == types[name] and other in program.steps[i].args:
                    yield _live(_substitute(program, name, other))
            new = f"x{len(program.params)}"  # the value comes from outside
            outside = replace(program, params=(*program.params, Operand(*types[name])))
            yield _live(_substitute(outside, name, new))
    if program.batch is not None:
        yield replace(program, batch=None)


def _substitute(program: Program, old: str, new: str) -> Program:
    rename = lambda names: tuple(new if n == old else n for n in names)  # noqa: E731
    steps = tuple(Step(s.op, rename(s.args), s.attrs) for s in program.steps)
    return replace(program, steps=steps, outputs=rename(program.outputs))


def _live(program: Program) -> Program:
    """Without what nothing leads to; names are given anew."""
    needed = set(program.outputs)
    for i in reversed(range(len(program.steps))):
        if f"v{i}" in needed:
            needed.update(program.steps[i].args)
    names: dict[str, str] = {}
    kept: dict[str, list] = {}
    for letter, items in (("x", program.params), ("c", program.consts), ("v", program.steps)):
        kept[letter] = []
        for i, item in enumerate(items):
            if f"{letter}{i}" in needed:
                names[f"{letter}{i}"] = f"{letter}{len(kept[letter])}"
                kept[letter].append(item)
    steps = tuple(Step(s.op, tuple(names[a] for a in s.args), s.attrs) for s in kept["v"])
    outputs = tuple(names[o] for o in program.outputs)
    return Program(tuple(kept["x"]), tuple(kept["c"]), steps, outputs, program.batch)


def _types(program: Program) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and dtype of every tensor; a function with a symbolic batch is taken at its size."""
    values = [
        (f"{letter}{i}", (o.shape, o.dtype))
        for letter, all_ in (("x", program.params), ("c", program.consts))
        for i, o in enumerate(all_)
    ]
    types = dict(values)
    main = replace(program, batch=None).module["main"]
    for i, (var, _) in zip(range(len(program.steps)), bindings_of(main)):
        if isinstance(var.ty, relax.TensorType):
            types[f"v{i}"] = (tuple(int(d) for d in shape_dims(var.ty)), str(dtype_of(var.ty)))
    return types
