"""PyTorch's exported programs, through TVM's importer."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from ...core.errors import UnsupportedError
from ...ir.tvm_compat import shape_dims
from .dims import solve_dims
from .fused import decompositions as fused
from .precision import CONVERTERS as NARROW
from .promotion import CONVERTERS as PROMOTING
from .quantised import CONVERTERS as QUANTISED
from .recurrent import CONVERTERS as RECURRENT
from .recurrent import decompositions


def import_torch(program: Any) -> tvm.IRModule:
    """A Relax module of a ``torch.export.ExportedProgram``, its parameters as constants."""
    from tvm.relax.frontend.torch import from_exported_program

    _refuse_random_results(program)
    try:
        program = program.run_decompositions({**decompositions(program), **fused()})  # which turns writes into results
        _refuse_writes(program)
        mod = from_exported_program(
            program, keep_params_as_input=False, custom_convert_map=CONVERTERS, run_ep_decomposition=False
        )
        mod["main"] = solve_dims(mod["main"])
        return mod
    except UnsupportedError:
        raise
    except Exception as err:  # assertions, KeyErrors and TVM's own errors of any kind
        raise UnsupportedError(
            f"TVM's PyTorch importer refuses this program: {_first_line(err)}; "
            "torch.onnx.export(dynamo=True) and the ONNX form often work instead"
        ) from err


def _refuse_writes(program: Any) -> None:
    signature = program.graph_signature
    written = [*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()]
    if written:
        raise UnsupportedError(
            f"the program writes to {written[0]}, as in training or in a cache; "
            "export a model that only returns results"
        )


def _refuse_random_results(program: Any) -> None:
    """TVM's importer leaves dropout out."""
    for node in program.graph.nodes:
        tags = [tag.name for tag in getattr(node.target, "tags", ())]
        if "nondeterministic_seeded" in tags and not _drops_nothing(node):
            raise UnsupportedError(f"{node.target} gives random results; call model.eval() for inference")


def _drops_nothing(node: Any) -> bool:
    """Whether an operator that can drop random values drops none."""
    names = [argument.name for argument in node.target._schema.arguments]
    given = {**dict(zip(names, node.args)), **node.kwargs}
    if "train" in names:
        return given.get("train") is False
    return "dropout_p" in names and not given.get("dropout_p")


def _cat(node: Any, importer: Any) -> Any:
    """PyTorch leaves out operands of shape (0,), whatever the rank of the others: a cache before its first word."""
    tensors = importer.retrieve_args(node)[0]
    axis = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
    full = [t for t in tensors if shape_dims(t.ty) != [0]] or tensors[:1]
    if len(full) == 1:
        return full[0]
    return importer.block_builder.emit(relax.op.concat(full, axis=axis))


def _resize(method: str) -> Any:
    """A converter of ``upsample_*2d.vec``, whose sizes may be open."""

    def convert(node: Any, importer: Any) -> Any:
        data, size, *align, factors = importer.retrieve_args(node)
        dims = shape_dims(data.ty) or []
        if not size:
            if any(not isinstance(d, int) for d in dims) and any(f != int(f) for f in factors):
                raise UnsupportedError(
                    f"{node.target} makes open sizes {factors} times as large; "
                    "give interpolate() whole factors or a size"
                )
            size = [d * int(f) if f == int(f) else int(d * f) for d, f in zip(dims[2:], factors, strict=True)]
        nearest = method == "nearest_neighbor"
        transformation = "asymmetric" if nearest else "align_corners" if align[0] else "half_pixel"
        resized = relax.op.image.resize2d(
            data,
            relax.ShapeExpr(list(size)),
            layout="NCHW",
            method=method,
            coordinate_transformation_mode=transformation,
            rounding_method="floor" if nearest else "round",
        )
        return importer.block_builder.emit(resized)

    return convert


#: in place of the importer's own, by the name of the overload
CONVERTERS = {
    "cat.default": _cat,
    "upsample_nearest2d.vec": _resize("nearest_neighbor"),
    "upsample_bilinear2d.vec": _resize("linear"),
    **NARROW,
    **PROMOTING,
    **QUANTISED,
    **RECURRENT,
}


def _first_line(err: Exception) -> str:
    return (str(err).strip() or type(err).__name__).splitlines()[0]
