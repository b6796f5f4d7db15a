"""What the server refuses, and what its processes survive."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import http.client
import json
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import tirx

import tvm_byoc_dnnl as byoc
from tvm_byoc_dnnl.serve import application

from .serving import WAIT, WEIGHT, Service, ask, expected, infer_body, product, rows

pytestmark = pytest.mark.native


# ---------------------------------------------------------------- files and processes
def test_workers_are_replaced_reload_by_content_and_end_with_their_parent(tmp_path: Path) -> None:
    path = tmp_path / "model.so"
    byoc.compile(product(tirx.Var("n", "int64"))).export_library(str(path))
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
    path.unlink()
    service.wait_for("No such file")
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
        from tvm_byoc_dnnl.core.tensor_info import TensorInfo

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
    from tvm_byoc_dnnl.serve import Metrics
    from tvm_byoc_dnnl.serve.models import Model, Models, Settings
    from tvm_byoc_dnnl.serve.workers import address, bound

    model = Model.__new__(Model)
    model.name, model.version, model._settings, model.runner = "m", "1", Settings(**settings), Held()
    model.inputs, model.outputs, model.most_rows = model.runner.inputs, model.runner.outputs, 1
    model.input_names = model.runner.input_names
    models = Models([model], Metrics())
    server = model.runner.server = application.Server(application.application(models, 10_000), models)
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


def test_clients_with_kept_connections_are_sent_away_before_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "_PARTING", WAIT)
    with held() as (address, runner):
        runner.may_run.set()
        connection = http.client.HTTPConnection(address, timeout=WAIT)
        closes, asked = None, 0
        while closes != "close":
            connection.request("POST", "/v2/models/m/infer", json.dumps(infer_body(rows(1))))
            answer = connection.getresponse()
            closes = answer.headers.get("connection")
            assert answer.status == 200 and answer.read()
            asked += 1
            runner.server.should_exit = True
        assert asked > 1
