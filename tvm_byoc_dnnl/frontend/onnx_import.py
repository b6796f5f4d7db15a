"""ONNX models: fix the inputs' shapes, rewrite nodes that TVM's importer cannot read, import."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnx
import tvm

from ..errors import ByocError, InputError, UnsupportedError, out_of_resources
from ..signature import DIMS_ATTR, NODES_ATTR, OUTPUTS_ATTR
from ..whole import operator
from .onnx_binding import bind_params
from .onnx_checks import check_model
from .onnx_dims import name_dims, refuse_sequences, relax_shapes
from .onnx_equal_dims import unify_dims
from .onnx_file import Weights, load_whole, read_model
from .onnx_graph import Graph
from .onnx_importer import NamingImporter, converters
from .onnx_inputs import Shapes, advice_on_inputs, fixed_inputs
from .onnx_nodes import is_standard
from .onnx_operands import check_operands
from .onnx_rewrites import rewrite
from .onnx_structure import check_structure

__all__ = ["NOT_ONNX", "import_onnx", "load_apart", "load_onnx"]

_Read = TypeVar("_Read")

_ALIGNMENT = 64  # bytes
_LARGE = 1 << 12  # elements; smaller constants may be shapes or axes, which the importer wants to see
# Operators of ONNX Runtime's own domain that the importer means.
_CONTRIB = frozenset(
    {
        *("Attention", "BiasGelu", "EmbedLayerNormalization", "FastGelu", "Gelu", "MatMulInteger16"),
        *("DequantizeLinear", "QuantizeLinear"),
    }
)
#: Converters of TVM that mean no operator of ONNX, or, for Attention, not ONNX's.
NOT_ONNX = frozenset(
    {
        *("AllClassNMS", "Attention", "BiasGelu", "EmbedLayerNormalization", "FastGelu", "MatMulInteger16"),
        "SkipLayerNormalization",
    }
)


def load_onnx(path: Path) -> onnx.ModelProto:
    """The model in an .onnx file, with the weights in files beside it."""
    return _read(path, load_whole)


def load_apart(path: Path) -> tuple[onnx.ModelProto, Weights]:
    """The model in an .onnx file, and those weights that are not in it but apart."""
    return _read(path, read_model)


def _read(path: Path, read: Callable[[Path], _Read]) -> _Read:
    try:
        return read(path)
    except InputError:
        raise
    except FileNotFoundError as err:
        if str(err.filename) != str(path):
            raise InputError(f"cannot read `{path}`: its weights are in `{err.filename}`, which is not there") from err
        raise InputError(f"no file `{path}`; give the path of an .onnx file") from err
    except Exception as err:  # protobuf's DecodeError, OSError and ValueError of external data
        if (resources := out_of_resources(err)) is not None:
            raise resources from err
        raise InputError(f"cannot read `{path}` as an ONNX model: {_first_line(err)}") from err


def import_onnx(model: onnx.ModelProto, shapes: Shapes | None = None, weights: Weights | None = None) -> tvm.IRModule:
    """A Relax module of an ONNX model; see `to_relax`. ``weights``: those whose data are not in the model."""
    try:
        return _import_onnx(model, shapes, weights or Weights({}))
    except UnsupportedError as error:
        raise UnsupportedError(f"{error}{advice_on_inputs(model, shapes or {})}") from error.__cause__
    except ByocError:
        raise
    except Exception as error:
        if (resources := out_of_resources(error)) is not None:
            raise resources from error
        raise InputError(
            f"the ONNX model cannot be read ({type(error).__name__}: {_first_line(error)}); onnx.checker.check_model "
            "may say which node is not as ONNX defines it"
        ) from error


def _import_onnx(model: onnx.ModelProto, shapes: Shapes | None, weights: Weights) -> tvm.IRModule:
    if not model.graph.output:
        raise InputError("the ONNX model has no outputs: it is empty or damaged")
    if any(t.data_location == onnx.TensorProto.EXTERNAL for t in model.graph.initializer):
        raise InputError(
            "the model's weights lie in files beside it and are not loaded; give its path, or call "
            "onnx.load_external_data_for_model first"
        )
    check_structure(model, weights)
    if model.functions:
        model = _without_functions(model)
    graph = Graph(model, weights)
    graph.inputs = fixed_inputs(graph.inputs, shapes or {})
    refuse_sequences(graph.inputs)
    named = name_dims([*graph.inputs, *graph.outputs])
    graph.inputs, graph.outputs = named[: len(graph.inputs)], named[len(graph.inputs) :]
    check_model(graph)
    check_operands(graph)
    rewrite(graph)
    check_operands(graph)  # with the constants that became known
    _check_operators(graph)
    module = _import(graph, {id(array) for array in weights.values()})
    names = {"input_names": [i.name for i in graph.inputs], "output_names": [o.name for o in graph.outputs]}
    module["main"] = module["main"].with_attrs({**names, "num_input": len(graph.inputs)})
    weights.complete()
    return module


def _without_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its own functions written out; those of another opset are converted to the model's."""
    from onnx.inliner import inline_local_functions

    try:
        inlined = inline_local_functions(model, convert_version=True)
    except RuntimeError as err:
        raise UnsupportedError(f"the functions of the model cannot be written out: {_first_line(err)}") from err
    for function in inlined.functions:
        opsets = ", ".join(f"{o.domain or 'ai.onnx'} {o.version}" for o in function.opset_import)
        raise UnsupportedError(
            f"the function `{function.domain}.{function.name}` cannot be written out: it is for the opsets {opsets}, "
            f"and ONNX's version converter cannot bring it to the model's"
        )
    return inlined


def _import(graph: Graph, fresh: set[int]) -> tvm.IRModule:
    """Run TVM's importer without the weights.

    It copies every byte of a model, several times. Small weights become constants before; large ones go in as inputs
    and are bound afterwards, from the model's own memory. ``fresh``: by address, arrays that were read for this import.
    """
    light, small, large = graph.apart(_LARGE)
    inputs = relax_shapes(light.input)
    importer = NamingImporter(inputs, small)
    for value in light.input:
        value.type.tensor_type.ClearField("shape")  # the importer would read the dims' names in its own way
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")  # about renamed inputs; the names are kept in an attribute
        try:
            module = importer.from_onnx(light, graph.opset)
        except UnsupportedError:
            importer.give_up()
            raise
        except Exception as err:
            importer.give_up()
            what = f"{_first_line(err)} ({importer.place})" if importer.place else _first_line(err)
            raise UnsupportedError(f"TVM's ONNX importer refuses this model: {what}") from err
    params = module["main"].params[len(graph.inputs) :]
    bound = {p: _tensor(array) for p, array in zip(params, large, strict=True)}
    others = [array for array in large if id(array) not in fresh and _is_as_tvm_wants(array)]
    owned = [
        not _is_as_tvm_wants(a) or (id(a) in fresh and not any(np.may_share_memory(a, other) for other in others))
        for a in large
    ]
    module = bind_params(module, bound, [p for p, is_owned in zip(params, owned, strict=True) if is_owned])
    attrs: dict[str, Any] = {NODES_ATTR: importer.nodes_by_variable(module["main"])}
    if inputs.names:
        attrs[DIMS_ATTR] = inputs.names
        attrs[OUTPUTS_ATTR] = [
            [str(d.dim_value or d.dim_param) for d in o.type.tensor_type.shape.dim] for o in graph.outputs
        ]
    module["main"] = unify_dims(module["main"]).with_attrs(attrs)
    return module


def _tensor(array: np.ndarray) -> tvm.runtime.Tensor:
    """A tensor of ``array``: its own memory, if that is as TVM wants it."""
    return tvm.runtime.from_dlpack(array) if _is_as_tvm_wants(array) else tvm.runtime.tensor(array)


def _is_as_tvm_wants(array: np.ndarray) -> bool:
    """Whether a tensor can have an array's own memory; it has a copy else."""
    return array.flags.c_contiguous and array.flags.writeable and array.ctypes.data % _ALIGNMENT == 0


def _check_operators(graph: Graph) -> None:
    """Name every operator that the importer has no converter for, before it gives up at the first."""
    known = {*converters(), *(n.op_type for n in graph.nodes if operator(n.domain, n.op_type)), "If", "Constant"}
    # The importer looks at names only, so another domain's `Relu` would pass for ONNX's.
    missing = [n for n in graph.nodes if n.op_type not in known or not (_is_onnx(n) or _is_contrib(n))]
    if not missing:
        return
    first: dict[str, onnx.NodeProto] = {}
    for node in missing:
        first.setdefault(f"{node.domain or 'ai.onnx'}.{node.op_type}", node)
    named = [f"{kind} (node `{node.name or node.output[0]}`)" for kind, node in first.items()]
    raise UnsupportedError(
        f"no Relax equivalent for ONNX operator{'s' if len(named) > 1 else ''} {', '.join(named)} "
        f"(opset {graph.opset}); export the model with standard operators instead"
    )


def _is_onnx(node: onnx.NodeProto) -> bool:
    return is_standard(node) and node.op_type not in NOT_ONNX


def _is_contrib(node: onnx.NodeProto) -> bool:
    return node.domain == "com.microsoft" and node.op_type in _CONTRIB


def _first_line(err: Exception) -> str:
    return (str(err).strip() or type(err).__name__).splitlines()[0]
