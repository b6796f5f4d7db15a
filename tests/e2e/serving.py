"""A server in a process of its own, and how to ask it."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax

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
