"""`tvm-byoc serve` as a user starts it, asked by the client of another project; and its refusals."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
import tvm
from tvm import relax, tirx

import tvm_byoc_dnnl as byoc
from tvm_byoc_dnnl.core.errors import InputError
from tvm_byoc_dnnl.serve import grpc_service
from tvm_byoc_dnnl.serve.tensors import DATATYPES

pytestmark = pytest.mark.native

WEIGHT = np.random.default_rng(0).standard_normal((16, 8), dtype="float32")
WAIT = 60


def product(rows: Any, weight: np.ndarray = WEIGHT) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((rows, 16), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(relax.op.nn.relu(relax.op.matmul(x, relax.const(weight))))
        builder.emit_func_output(out)
    return builder.get()


def rows(count: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, 16), dtype="float32")


def expected(x: np.ndarray, weight: np.ndarray = WEIGHT) -> np.ndarray:
    return np.maximum(x @ weight, 0)


class Service:
    """A server in a process of its own, and the lines that it has written."""

    def __init__(self, *arguments: str | Path) -> None:
        command = [sys.executable, "-m", "tvm_byoc_dnnl", "serve", *map(str, arguments), "--port", "0"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.lines: list[str] = []
        self._said = threading.Condition()
        threading.Thread(target=self._listen, daemon=True).start()
        line = self.wait_for(r"serving on http://(\S+)")
        self.address = re.search(r"http://(\S+)", line)[1]
        self.grpc = (re.findall(r"grpc://(\S+)", line) or [""])[0]

    def _listen(self) -> None:
        for line in self.process.stderr:
            with self._said:
                self.lines.append(line)
                self._said.notify_all()

    def wait_for(self, pattern: str) -> str:
        with self._said:
            found = self._said.wait_for(lambda: [n for n in self.lines if re.search(pattern, n)], WAIT)
        assert found, "".join(self.lines)
        return found[0]

    def workers(self) -> set[int]:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return set(map(int, children.split()))

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(WAIT)


def ask(address: str, path: str, body: Any = None, method: str = "", **headers: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(address, timeout=WAIT)
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    connection.request(method or ("GET" if body is None else "POST"), path, data, headers)
    answer = connection.getresponse()
    content = answer.read()
    with contextlib.suppress(ValueError):
        return answer.status, json.loads(content)
    return answer.status, content.decode()


def infer_body(x: np.ndarray, **changes: Any) -> dict[str, Any]:
    entry = {"name": "x", "shape": list(x.shape), "datatype": "FP32", "data": x.tolist(), **changes}
    return {"inputs": [entry]}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    byoc.compile(product(tirx.Var("n", "int64"))).export_library(str(folder / "open.so"))
    byoc.compile(product(2)).export_library(str(folder / "fixed.so"))
    return folder


@pytest.fixture(scope="module")
def service(files: Path) -> Iterator[Service]:
    found = Service(
        files / "open.so", f"two={files / 'fixed.so'}", "--max-batch", "8", "--max-delay", "1", "--grpc-port", "0"
    )
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
    [("br", b"", "expected gzip or deflate"), ("gzip", b"xx", "is not gzip"), ("gzip", gzip.compress(b"x"), "no JSON")],
)
def test_compressed_bodies_are_checked(service: Service, kind: str, body: bytes, message: str) -> None:
    status, answer = ask(service.address, "/v2/models/open/infer", body, **{"Content-Encoding": kind})
    assert status == 400 and message in answer["error"]


# ---------------------------------------------------------------- files and processes
def test_workers_are_replaced_reload_by_content_and_end_with_their_parent(files: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.so"
    path.write_bytes((files / "open.so").read_bytes())
    service = Service(path, "--workers", "2", "--reload", "0.05")
    first = service.workers()
    assert len(first) == 2
    victim = min(first)
    os.kill(victim, signal.SIGKILL)
    service.wait_for(rf"worker {victim} ended with status -9; another starts")
    ask_one = lambda: ask(service.address, "/v2/models/model/infer", infer_body(rows(2)))  # noqa: E731
    status, answer = ask_one()
    assert status == 200

    (tmp_path / "broken").write_bytes(b"\x7fELF, but no library")
    os.replace(tmp_path / "broken", path)
    service.wait_for(f"model stays at version {answer['model_version']}")
    assert ask_one() == (status, answer)

    byoc.compile(product(tirx.Var("n", "int64"), -WEIGHT)).export_library(str(path))
    service.wait_for("model is at version")
    status, newer = ask_one()
    assert status == 200 and newer["model_version"] != answer["model_version"]
    got = np.array(newer["outputs"][0]["data"], "float32").reshape(2, 8)
    np.testing.assert_allclose(got, expected(rows(2), -WEIGHT), rtol=1e-4, atol=1e-5)

    last = service.workers()
    assert len(last) == 2 and not last & first
    watched = [os.pidfd_open(pid) for pid in last]
    service.process.kill()
    service.process.wait(WAIT)
    for descriptor in watched:
        readable = wait_for_end(descriptor)
        os.close(descriptor)
        assert readable


def wait_for_end(descriptor: int) -> bool:
    import select

    return bool(select.select([descriptor], [], [], WAIT)[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing.so"], "no file nothing.so"),
        (["a/b=pyproject.toml"], "expected letters"),
        (["a=pyproject.toml", "a=setup.py"], "two models have the name 'a'"),
        (["pyproject.toml", "--host", "256.1.1.1"], "cannot listen on 256.1.1.1"),
        (["pyproject.toml", "--max-batch", "0"], "--max-batch"),
    ],
)
def test_wrong_arguments(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    from tvm_byoc_dnnl import cli

    monkeypatch.chdir(Path(__file__).resolve().parents[2])
    with pytest.raises(SystemExit) as ended:
        cli.main(["serve", *arguments, "--port", "0"])
    assert ended.value.code == 2 and message in capsys.readouterr().err


# ---------------------------------------------------------------- a model that is held
class Held:
    """A runner whose calls wait until they are let go."""

    def __init__(self) -> None:
        from tvm_byoc_dnnl.ir.signature import TensorInfo

        self.inputs = (TensorInfo("x", "float32", ("n", 16)),)
        self.outputs = (TensorInfo("y", "float32", ("n", 16)),)
        self.input_names = ["x"]
        self.entered, self.may_run = threading.Semaphore(0), threading.Event()

    def named(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        self.entered.release()
        assert self.may_run.wait(WAIT)
        return {"y": inputs["x"]}


@contextlib.contextmanager
def held(**settings: Any) -> Iterator[tuple[str, Held]]:
    """A server in a thread of this process."""
    import uvicorn

    from tvm_byoc_dnnl.serve.metrics import Metrics
    from tvm_byoc_dnnl.serve.models import Model, Models, Settings
    from tvm_byoc_dnnl.serve.rest import application
    from tvm_byoc_dnnl.serve.workers import address, bound

    model = Model.__new__(Model)
    model.name, model.version, model._settings, model.runner = "m", "1", Settings(**settings), Held()
    model.inputs, model.outputs, model.most_rows = model.runner.inputs, model.runner.outputs, 1
    config = uvicorn.Config(application(Models([model], Metrics()), 10_000), log_level="error", lifespan="on")
    server = uvicorn.Server(config)
    with bound("127.0.0.1", 0) as listening:
        listening.listen()
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listening])))
        thread.start()
        try:
            yield address(listening), model.runner
        finally:
            model.runner.may_run.set()
            server.should_exit = True
            thread.join(WAIT)


def test_a_full_queue_is_429_and_nothing_else_is_lost() -> None:
    with held(places=1) as (address, runner), ThreadPoolExecutor(2) as pool:
        one = lambda seed: ask(address, "/v2/models/m/infer", infer_body(rows(1, seed)))  # noqa: E731
        running = pool.submit(one, 0)
        assert runner.entered.acquire(timeout=WAIT)
        refused = [0]

        def second() -> tuple[int, Any]:  # one of two finds the place
            status, answer = one(1)
            refused[0] += status == 429
            if status == 429:
                assert "1 requests wait already" in answer["error"]
                runner.may_run.set()
            return status, answer

        waiting = [pool.submit(second), second()]
        answers = [running.result(WAIT), waiting[0].result(WAIT), waiting[1]]
        assert sorted(status for status, _ in answers) == [200, 200, 429]
        assert 'byoc_requests_total{model="m",status="429"} 1.0' in ask(address, "/metrics")[1]


def test_a_request_that_takes_too_long_is_504() -> None:
    with held(timeout=0.05) as (address, runner):
        status, answer = ask(address, "/v2/models/m/infer", infer_body(rows(1)))
        assert (status, answer) == (504, {"error": "no result within 0.05 s"})
        assert runner.entered.acquire(timeout=WAIT)
        assert ask(address, "/v2/health/live")[0] == 200


def test_a_large_request_is_413() -> None:
    with held() as (address, _):
        for body, headers in ((b" " * 20_000, {}), (gzip.compress(b" " * 20_000), {"Content-Encoding": "gzip"})):
            status, answer = ask(address, "/v2/models/m/infer", body, **headers)
            assert status == 413 and "more than 10000 bytes" in answer["error"]
