"""The Open Inference Protocol over gRPC; its messages are built here, from what the protocol says of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from ..core.errors import InputError
from . import BAD_REQUEST, FAILED, NOT_FOUND, TIMED_OUT, TOO_MANY, UNAVAILABLE
from .models import Models, server_metadata
from .rest import error_answer
from .tensors import described, from_bytes, from_numbers, raw_bytes

_PACKAGE, _SERVICE = "inference", "GRPCInferenceService"
_CODES = {
    BAD_REQUEST: grpc.StatusCode.INVALID_ARGUMENT,
    NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    TOO_MANY: grpc.StatusCode.RESOURCE_EXHAUSTED,
    FAILED: grpc.StatusCode.INTERNAL,
    UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    TIMED_OUT: grpc.StatusCode.DEADLINE_EXCEEDED,
}

#: message → its fields, numbered from 1 on. A name with a dot is a message inside of another; `*` is repeated, `|` one
#: of several, and `parameters` a map from names to `InferParameter`.
_MESSAGES = {
    "ServerLiveRequest": "",
    "ServerLiveResponse": "bool live",
    "ServerReadyRequest": "",
    "ServerReadyResponse": "bool ready",
    "ModelReadyRequest": "string name, string version",
    "ModelReadyResponse": "bool ready",
    "ServerMetadataRequest": "",
    "ServerMetadataResponse": "string name, string version, string* extensions",
    "ModelMetadataRequest": "string name, string version",
    "ModelMetadataResponse": "string name, string* versions, string platform, "
    "ModelMetadataResponse.TensorMetadata* inputs, ModelMetadataResponse.TensorMetadata* outputs",
    "ModelMetadataResponse.TensorMetadata": "string name, string datatype, int64* shape",
    "InferParameter": "bool| bool_param, int64| int64_param, string| string_param, double| double_param, "
    "uint64| uint64_param",
    "InferTensorContents": "bool* bool_contents, int32* int_contents, int64* int64_contents, uint32* uint_contents, "
    "uint64* uint64_contents, float* fp32_contents, double* fp64_contents, bytes* bytes_contents",
    "ModelInferRequest": "string model_name, string model_version, string id, parameters, "
    "ModelInferRequest.InferInputTensor* inputs, ModelInferRequest.InferRequestedOutputTensor* outputs, "
    "bytes* raw_input_contents",
    "ModelInferRequest.InferInputTensor": "string name, string datatype, int64* shape, parameters, "
    "InferTensorContents contents",
    "ModelInferRequest.InferRequestedOutputTensor": "string name, parameters",
    "ModelInferResponse": "string model_name, string model_version, string id, parameters, "
    "ModelInferResponse.InferOutputTensor* outputs, bytes* raw_output_contents",
    "ModelInferResponse.InferOutputTensor": "string name, string datatype, int64* shape, parameters, "
    "InferTensorContents contents",
}
#: datatype → the field of `InferTensorContents`; the others are raw bytes only
_CONTENTS = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    **{name: f"{name.lower()}_contents" for name in ("INT64", "UINT64", "FP32", "FP64")},
}


def _field(message: descriptor_pb2.DescriptorProto, text: str, path: str) -> None:
    kind, _, name = text.partition(" ")
    field = message.field.add(name=name or kind, number=len(message.field) + 1)
    field.label = field.LABEL_REPEATED if kind.endswith("*") or not name else field.LABEL_OPTIONAL
    if kind.endswith("|"):
        field.oneof_index = 0
    if not name:  # a map is a list of messages of this form
        entry = message.nested_type.add(name="ParametersEntry")
        entry.options.map_entry = True
        _field(entry, "string key", path)
        _field(entry, "InferParameter value", path)
        kind = f"{path}.ParametersEntry"
    kind = kind.rstrip("*|")
    if (number := getattr(field, f"TYPE_{kind.upper()}", None)) is not None:
        field.type = number
    else:
        field.type, field.type_name = field.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"


def messages() -> dict[str, Any]:
    """The protocol's messages as classes, by name."""
    file = descriptor_pb2.FileDescriptorProto(name="open_inference_grpc.proto", package=_PACKAGE, syntax="proto3")
    made: dict[str, descriptor_pb2.DescriptorProto] = {}
    for path, fields in _MESSAGES.items():
        outer, _, name = path.rpartition(".")
        made[path] = message = (made[outer].nested_type if outer else file.message_type).add(name=name)
        if "|" in fields:
            message.oneof_decl.add(name="parameter_choice")
        for text in filter(None, fields.split(", ")):
            _field(message, text, path)
    pool = descriptor_pool.DescriptorPool()  # of our own: a program may have the generated ones, too
    pool.Add(file)
    names = (path for path in _MESSAGES if "." not in path)
    return {n: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{n}")) for n in names}


class Service:
    """Answers the calls of a client."""

    def __init__(self, models: Models) -> None:
        self._models, self._messages = models, messages()

    def handlers(self) -> Any:
        """What gRPC's server takes."""
        answers: Mapping[str, Callable[[Any], Awaitable[dict[str, Any]]]] = {
            "ServerLive": self._live,
            "ServerReady": self._ready,
            "ServerMetadata": self._server,
            "ModelReady": self._model_ready,
            "ModelMetadata": self._model,
            "ModelInfer": self._infer,
        }
        return grpc.method_handlers_generic_handler(
            f"{_PACKAGE}.{_SERVICE}", {name: self._handler(name, answer) for name, answer in answers.items()}
        )

    def _handler(self, name: str, answer: Callable[[Any], Awaitable[dict[str, Any]]]) -> Any:
        response = self._messages[f"{name}Response"]

        async def called(request: Any, context: Any) -> Any:
            try:
                return response(**await answer(request))
            except Exception as error:
                status, message = error_answer(error)
                return await context.abort(_CODES[status], message)

        return grpc.unary_unary_rpc_method_handler(
            called,
            request_deserializer=self._messages[f"{name}Request"].FromString,
            response_serializer=response.SerializeToString,
        )

    async def _live(self, _: Any) -> dict[str, Any]:
        return {"live": True}

    async def _ready(self, _: Any) -> dict[str, Any]:
        return {"ready": self._models.is_ready}

    async def _server(self, _: Any) -> dict[str, Any]:
        return server_metadata()

    async def _model_ready(self, request: Any) -> dict[str, Any]:
        self._models.find(request.name, request.version)
        return {"ready": self._models.is_ready}

    async def _model(self, request: Any) -> dict[str, Any]:
        return self._models.find(request.name, request.version).metadata()

    async def _infer(self, request: Any) -> dict[str, Any]:
        wanted = [output.name for output in request.outputs] or None
        inputs = _arrays(request)
        model, arrays = await self._models.infer(request.model_name, request.model_version, inputs, wanted)
        outputs = [described(name, array) for name, array in arrays.items()]
        answer = {"model_name": model.name, "model_version": model.version, "id": request.id, "outputs": outputs}
        if request.raw_input_contents or any(output["datatype"] not in _CONTENTS for output in outputs):
            return {**answer, "raw_output_contents": [raw_bytes(array) for array in arrays.values()]}
        for output, array in zip(outputs, arrays.values(), strict=True):
            output["contents"] = {_CONTENTS[output["datatype"]]: array.ravel().tolist()}
        return answer


def _arrays(request: Any) -> dict[str, Any]:
    """The inputs of a request. Raises `InputError` if one is given twice, or its data do not fit what is said of it."""
    raw, found = request.raw_input_contents, {}
    if raw and len(raw) != len(request.inputs):
        raise InputError(f"the request has {len(raw)} raw_input_contents; expected {len(request.inputs)}, as inputs")
    for index, entry in enumerate(request.inputs):
        if entry.name in found:
            raise InputError(f"input {entry.name!r} is given twice")
        if raw:
            found[entry.name] = from_bytes(entry.name, entry.datatype, entry.shape, raw[index])
            continue
        field = _CONTENTS.get(entry.datatype)
        numbers = list(getattr(entry.contents, field)) if field else []
        found[entry.name] = from_numbers(entry.name, entry.datatype, entry.shape, numbers)
    return found


async def serving(models: Models, place: str, largest: int) -> Any:
    """A server of gRPC that has started at ``host:port``; other processes may serve there, too."""
    options = [("grpc.so_reuseport", 1), ("grpc.max_receive_message_length", largest),
               ("grpc.max_send_message_length", -1)]  # fmt: skip
    server = grpc.aio.server(options=options)
    server.add_generic_rpc_handlers((Service(models).handlers(),))
    server.add_insecure_port(place)
    await server.start()
    return server
