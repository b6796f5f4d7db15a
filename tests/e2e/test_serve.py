"""`tvm-byoc serve` as a user starts it, asked by the client of another project; and its refusals."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tvm import tirx

import tvm_byoc_dnnl as byoc
from tvm_byoc_dnnl import cli
from tvm_byoc_dnnl.core.errors import InputError
from tvm_byoc_dnnl.serve import grpc_service
from tvm_byoc_dnnl.serve.tensors import DATATYPES

from .language_model import LanguageModel
from .serving import Service, ask, expected, infer_body, product, rows
from .test_text import CONTEXT, TOKENS
from .test_text import write as write_folder

pytestmark = pytest.mark.native

TEMPLATE = """{% if messages[0].role != 'user' %}{{ raise_exception('the first is no user') }}{% endif %}
{%- for message in messages %}[{{ message.role }}] {{ message.content }}{{ eos_token }}{% endfor %}
{%- if add_generation_prompt %}[assistant]{% endif %}"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    byoc.compile(product(tirx.Var("n", "int64"))).export_library(str(folder / "open.so"))
    byoc.compile(product(2)).export_library(str(folder / "fixed.so"))
    write_folder(folder / "talker", LanguageModel(vocabulary=TOKENS, longest=CONTEXT, seed=21))
    config = {"chat_template": TEMPLATE, "bos_token": "<begin>", "eos_token": {"content": "<end>"}}
    (folder / "talker" / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def service(files: Path) -> Iterator[Service]:
    models = [files / "open.so", f"two={files / 'fixed.so'}", files / "talker", "--cache-dir", files / "cache"]
    found = Service(*models, "--max-batch", "8", "--max-delay", "1", "--grpc-port", "0")
    yield found
    assert found.end() == 0, found.lines


# ---------------------------------------------------------------- one client after another
def test_what_the_server_says_of_itself(service: Service) -> None:
    get = lambda path: ask(service.address, path)  # noqa: E731
    assert get("/v2/health/live") == (200, {"live": True})
    assert get("/v2/health/ready") == (200, {"ready": True})
    assert get("/v2") == (200, {"name": "tvm-byoc", "version": byoc.__version__, "extensions": ["binary_tensor_data"]})
    status, found = get("/v2/models/open")
    (version,) = found["versions"]
    tensor = {"name": "x", "datatype": "FP32", "shape": [-1, 16]}
    assert status == 200 and found["inputs"] == [tensor] and found["outputs"][0]["shape"] == [-1, 8]
    assert get(f"/v2/models/open/versions/{version}") == (200, found)
    assert get(f"/v2/models/open/versions/{version}/ready") == (200, {"name": "open", "ready": True})
    assert get("/v2/models/two/ready") == (200, {"name": "two", "ready": True})


@pytest.mark.parametrize("binary", [True, False])
def test_tritonclient(service: Service, binary: bool) -> None:
    with http_client.InferenceServerClient(service.address) as client:
        assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("open")
        assert client.get_server_metadata()["name"] == "tvm-byoc"
        assert [i["name"] for i in client.get_model_metadata("open")["inputs"]] == ["x"]
        (name,) = [o["name"] for o in client.get_model_metadata("open")["outputs"]]
        for count, compression in ((1, None), (3, "gzip"), (0, "deflate")):
            x = rows(count)
            given = http_client.InferInput("x", list(x.shape), "FP32")
            given.set_data_from_numpy(x, binary_data=binary)
            wanted = [http_client.InferRequestedOutput(name, binary_data=binary)]
            for outputs in (wanted, None):
                answer = client.infer(
                    "open", [given], outputs=outputs, request_id="7", request_compression_algorithm=compression
                )
                np.testing.assert_allclose(answer.as_numpy(name).reshape(count, 8), expected(x), rtol=1e-4, atol=1e-5)
                assert answer.get_response()["id"] == "7"
        with pytest.raises(http_client.InferenceServerException, match="did you mean 'open'"):
            client.infer("opn", [given])


def test_the_client_of_grpc(service: Service) -> None:
    with grpc_client.InferenceServerClient(service.grpc) as client:
        assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("open")
        assert client.get_server_metadata().version == byoc.__version__
        metadata = client.get_model_metadata("open", as_json=True)
        assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": ["-1", "16"]}]
        (version,), (output,) = metadata["versions"], metadata["outputs"]
        x = rows(3)
        given = grpc_client.InferInput("x", [3, 16], "FP32")
        given.set_data_from_numpy(x)
        for outputs in (None, [grpc_client.InferRequestedOutput(output["name"])]):
            answer = client.infer("open", [given], version, outputs, "7")
            np.testing.assert_allclose(answer.as_numpy(output["name"]), expected(x), rtol=1e-4, atol=1e-5)
            assert answer.get_response().id == "7"
        given.set_shape([2, 16])
        for call, code, message in (
            (lambda: client.infer("open", [given]), "INVALID_ARGUMENT", "has 192 bytes; FP32[2, 16] has 128"),
            (lambda: client.infer("open", []), "INVALID_ARGUMENT", "no input 'x'"),
            (lambda: client.infer("opn", []), "NOT_FOUND", "did you mean 'open'"),
            (lambda: client.is_model_ready("open", "9"), "NOT_FOUND", "no version '9'"),
        ):
            with pytest.raises(grpc_client.InferenceServerException) as refused:
                call()
            assert refused.value.status() == f"StatusCode.{code}" and message in refused.value.message()


def test_messages_are_those_of_the_published_protocol() -> None:
    published = grpc_client.service_pb2.DESCRIPTOR.message_types_by_name

    def fields(message: Any) -> dict[str, Any]:
        inner = {nested.name: fields(nested) for nested in message.nested_types}
        one_of = [field.containing_oneof and field.containing_oneof.name for field in message.fields]
        return {**inner, "one of": one_of, "fields": [
            (f.name, f.number, f.type, f.is_repeated, f.message_type and f.message_type.full_name)
            for f in message.fields
        ]}  # fmt: skip

    made = grpc_service.messages()
    assert {name: fields(kind.DESCRIPTOR) for name, kind in made.items()} == {
        name: fields(published[name]) for name in made
    }


@pytest.mark.parametrize("dtype", [d for d in DATATYPES if d not in ("float16", "bfloat16")])
def test_typed_contents_of_grpc(dtype: str) -> None:
    kinds = grpc_service.messages()
    array = np.array([[0, 1, 1]]).astype(dtype)
    field = grpc_service._CONTENTS[DATATYPES[dtype]]
    entry = {"name": "x", "datatype": DATATYPES[dtype], "shape": [1, 3], "contents": {field: array.ravel().tolist()}}
    request = kinds["ModelInferRequest"](model_name="m", inputs=[entry])
    back = grpc_service._arrays(kinds["ModelInferRequest"].FromString(request.SerializeToString()))["x"]
    assert back.dtype == array.dtype and (back == array).all()
    request.inputs[0].shape[1] = 4
    with pytest.raises(InputError, match="expected"):
        grpc_service._arrays(request)


def test_answers_in_batches_are_those_of_single_calls(service: Service) -> None:
    def one(seed: int) -> None:
        x = rows(1 + seed % 3, seed)
        status, answer = ask(service.address, "/v2/models/open/infer", infer_body(x))
        assert status == 200
        got = np.array(answer["outputs"][0]["data"], "float32").reshape(answer["outputs"][0]["shape"])
        np.testing.assert_allclose(got, expected(x), rtol=1e-4, atol=1e-5)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(64)))
    text = ask(service.address, "/metrics")[1]
    count = lambda what: float(re.search(rf'^{what}{{model="open".*}} (\S+)$', text, re.M)[1])  # noqa: E731
    assert count("byoc_requests_total") >= 64
    assert count("byoc_call_rows_sum") > count("byoc_call_rows_count")  # some calls had several requests
    assert re.search(r'^byoc_waiting{model="open"} 0', text, re.M)


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("open/infer", b"no json", 400, "no JSON"),
        ("open/infer", {"inputs": []}, 400, "no input 'x'; expected x float32[n, 16]"),
        ("open/infer", infer_body(rows(1), datatype="FP64"), 400, "datatype FP64; expected FP32"),
        ("open/infer", infer_body(rows(1), shape=[16]), 400, "has data of shape [1, 16]; expected [16]"),
        ("open/infer", infer_body(rows(1)[0]), 400, "has shape [16], expected ['n', 16]"),
        ("open/infer", infer_body(rows(1), name="y"), 400, "unknown input 'y'; the model's inputs are x"),
        ("open/infer", {**infer_body(rows(1)), "outputs": [{"name": "output_1"}]}, 400, "did you mean 'output_0'"),
        ("two/infer", infer_body(rows(3)), 400, "has shape [3, 16], expected [2, 16]"),
        ("open/versions/1/infer", infer_body(rows(1)), 404, "has no version '1'"),
        ("tow/infer", infer_body(rows(2)), 404, "did you mean 'two'"),
        ("open/infer", None, 405, "Method Not Allowed"),
        ("open/nothing", None, 404, "Not Found"),
    ],
)
def test_a_bad_request_is_one_error(service: Service, path: str, body: Any, status: int, message: str) -> None:
    got, answer = ask(service.address, f"/v2/models/{path}", body)
    assert got == status and list(answer) == ["error"] and message in answer["error"]


@pytest.mark.parametrize(
    ("kind", "body", "message"),
    [
        ("br", b"", "expected gzip or deflate"),
        ("gzip", b"xx", "is not gzip"),
        ("gzip", gzip.compress(b"x", mtime=0), "no JSON"),
    ],
    ids=["unknown coding", "no gzip", "gzip of no JSON"],
)
def test_compressed_bodies_are_checked(service: Service, kind: str, body: bytes, message: str) -> None:
    status, answer = ask(service.address, "/v2/models/open/infer", body, **{"Content-Encoding": kind})
    assert status == 400 and message in answer["error"]


# ---------------------------------------------------------------- texts
@pytest.fixture(scope="module")
def generator(files: Path, service: Service) -> byoc.TextGenerator:
    return byoc.TextGenerator(files / "talker", threads=1, cache_dir=files / "cache")


def events(address: str, path: str, asked: dict[str, Any]) -> list[dict[str, Any]]:
    status, text = ask(address, path, {**asked, "stream": True})
    assert status == 200 and text.endswith("\n\ndata: [DONE]\n\n")
    return [json.loads(line.removeprefix("data: ")) for line in text.split("\n\n")[:-2]]


def test_completions_are_the_generators_texts(service: Service, generator: byoc.TextGenerator) -> None:
    prompts = ["The cat", "a hat and", "naïve"]
    wanted = generator.generate(prompts, 9)
    asked = {"model": "talker", "prompt": prompts, "max_tokens": 9}
    status, answer = ask(service.address, "/v1/completions", asked)
    assert status == 200, answer
    assert answer["object"] == "text_completion" and answer["model"] == "talker"
    assert [choice["text"] for choice in answer["choices"]] == wanted
    assert {choice["finish_reason"] for choice in answer["choices"]} <= {"stop", "length"}
    parts = events(service.address, "/v1/completions", {**asked, "stream_options": {"include_usage": True}})
    assert parts[-1]["choices"] == [] and parts[-1]["usage"] == answer["usage"]
    choices = [part["choices"][0] for part in parts[:-1]]
    for index, text in enumerate(wanted):
        mine = [choice for choice in choices if choice["index"] == index]
        assert "".join(choice["text"] for choice in mine) == text and len(mine) > 2
        assert [c["finish_reason"] for c in mine if c["finish_reason"]] == [answer["choices"][index]["finish_reason"]]
    with ThreadPoolExecutor(6) as pool:
        alone = pool.map(lambda p: ask(service.address, "/v1/completions", {**asked, "prompt": p}), prompts * 4)
    assert [answer["choices"][0]["text"] for _, answer in alone] == wanted * 4
    seeded = {"model": "talker", "prompt": "The cat", "temperature": 0.9, "top_p": 0.9, "seed": 3, "stop": ["t"]}
    text = ask(service.address, "/v1/completions", seeded)[1]["choices"][0]["text"]
    assert text == generator.generate("The cat", 16, temperature=0.9, top_p=0.9, seed=3, stop=["t"])


def test_a_chat_is_written_by_the_models_template(service: Service, generator: byoc.TextGenerator) -> None:
    parts = [{"type": "text", "text": "the"}, {"type": "text", "text": " rat"}]
    messages = [{"role": "user", "content": "the cat"}, {"role": "assistant", "content": "sat"},
                {"role": "user", "content": parts}]  # fmt: skip
    wanted = generator.generate("[user] the cat<end>[assistant] sat<end>[user] the rat<end>[assistant]", 5)
    asked = {"model": "talker", "messages": messages, "max_tokens": 5}
    status, answer = ask(service.address, "/v1/chat/completions", asked)
    assert status == 200 and answer["object"] == "chat.completion"
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": wanted}
    found = events(service.address, "/v1/chat/completions", asked)
    assert {part["object"] for part in found} == {"chat.completion.chunk"}
    deltas = [part["choices"][0]["delta"] for part in found]
    assert deltas[0]["role"] == "assistant" and "".join(d.get("content", "") for d in deltas) == wanted


def test_language_models_are_listed_and_counted(service: Service) -> None:
    assert [m["id"] for m in ask(service.address, "/v1/models")[1]["data"]] == ["talker"]
    assert ask(service.address, "/v1/completions", {"model": "talker", "prompt": "a", "max_tokens": 1})[0] == 200
    text = ask(service.address, "/metrics")[1]
    assert re.search(r'^byoc_tokens_total{kind="text",model="talker"} [1-9]', text, re.M)


@pytest.mark.parametrize(
    ("path", "changes", "status", "message"),
    [
        ("completions", {"model": "talkr"}, 404, "did you mean 'talker'"),
        ("completions", {"model": None}, 400, "model is None"),
        ("completions", {"model": "two"}, 400, "is a model of tensors, not a language model"),
        ("completions", {"prompt": 3}, 400, "prompt is no text"),
        ("completions", {"prompt": []}, 400, "prompt is no text"),
        ("completions", {"prompt": "a " * 100}, 400, "tokens"),
        ("completions", {"max_tokens": "3"}, 400, "max_tokens is '3'"),
        ("completions", {"temperature": -1, "stream": True}, 400, "temperature"),
        ("completions", {"n": 2}, 400, "n is 2; expected 1"),
        ("completions", {"stop": [3]}, 400, "stop is [3]"),
        ("completions", {"prompt": ["a"] * 1000}, 429, "texts wait already"),
        ("chat/completions", {}, 400, "messages is None"),
        ("chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "both texts"),
        ("chat/completions", {"messages": [{"role": "system", "content": "x"}]}, 400, "the first is no user"),
    ],
)
def test_a_bad_request_for_a_text(
    service: Service, path: str, changes: dict[str, Any], status: int, message: str
) -> None:
    got, answer = ask(service.address, f"/v1/{path}", {"model": "talker", "prompt": "a", **changes})
    assert got == status and message in answer["error"]["message"], answer
    assert answer["error"]["type"] == "invalid_request_error"


def test_tensors_of_a_language_model_are_refused(service: Service) -> None:
    status, answer = ask(service.address, "/v2/models/talker/infer", infer_body(rows(1)))
    assert status == 400 and "is a language model, not a model of tensors" in answer["error"]
    assert ask(service.address, "/v2/models/talker/ready")[0] == 200


def test_a_size_of_no_input_is_refused(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["serve", str(files / "open.so"), "--port", "0", "--shape", "xx=1,16"])
    assert ended.value.code == 2
    assert "no model has an input 'xx' to prepare; did you mean 'x'?" in capsys.readouterr().err
