"""Hold load on `tvm-byoc serve` for a while and check every answer: ``make test-serve-load``, ``ARGS='--seconds 20'``.

Clients ask for tensors, binary and as JSON, and for texts, over the loopback only. Half way, the file of the model is
replaced by one with the same weights and other bytes, and one worker is killed. A request may be refused by 429, or cut
where its worker ended; each answer must be right.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
from tvm import tirx

import tvm_byoc_dnnl as byoc

from .language_model import LanguageModel
from .serving import Service, expected, product, rows
from .test_text import CONTEXT, TOKENS, write

_POOL = 32
_PROMPTS = ["the cat", "a hat and", "naïve", "that"]


class Client(threading.Thread):
    """Asks again and again until the end; each answer is checked."""

    def __init__(self, address: str, index: int, end: float, texts: dict[str, str]) -> None:
        super().__init__()
        self._address, self._index, self._end, self._texts = address, index, end, texts
        self.seconds: list[float] = []
        self.found: Counter[str] = Counter()

    def run(self) -> None:
        ask = self._text if self._index % 8 == 7 else self._binary if self._index % 2 else self._numbers
        connection, number = http.client.HTTPConnection(self._address, timeout=60), self._index
        while time.monotonic() < self._end:
            number += 1
            started = time.perf_counter()
            try:
                self.found[ask(connection, number)] += 1
            except (OSError, http.client.HTTPException):
                self.found["cut"] += 1
                connection.close()
                continue
            self.seconds.append(time.perf_counter() - started)

    def _post(
        self, connection: http.client.HTTPConnection, path: str, body: bytes, right: Callable[[bytes, int], bool],
        **headers: str,
    ) -> str:  # fmt: skip
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        content = answer.read()
        if answer.status != 200:
            return str(answer.status)
        length = int(answer.headers.get("Inference-Header-Content-Length", len(content)))
        return "right" if right(content, length) else "WRONG"

    def _tensor(self, number: int, parameters: dict[str, object]) -> tuple[np.ndarray, dict[str, object]]:
        x = rows(1 + number % 3, number % _POOL)
        return x, {"name": "x", "shape": list(x.shape), "datatype": "FP32", **parameters}

    def _numbers(self, connection: http.client.HTTPConnection, number: int) -> str:
        x, entry = self._tensor(number, {})
        body = json.dumps({"inputs": [{**entry, "data": x.ravel().tolist()}]}).encode()

        def right(content: bytes, _: int) -> bool:
            return _is_right(np.array(json.loads(content)["outputs"][0]["data"], "float32"), x)

        return self._post(connection, "/v2/models/model/infer", body, right)

    def _binary(self, connection: http.client.HTTPConnection, number: int) -> str:
        x, entry = self._tensor(number, {"parameters": {"binary_data_size": (1 + number % 3) * 64}})
        text = json.dumps({"inputs": [entry], "parameters": {"binary_data_output": True}}).encode()
        headers = {"Inference-Header-Content-Length": str(len(text))}

        def right(content: bytes, length: int) -> bool:
            return _is_right(np.frombuffer(content[length:], "float32"), x)

        return self._post(connection, "/v2/models/model/infer", text + x.tobytes(), right, **headers)

    def _text(self, connection: http.client.HTTPConnection, number: int) -> str:
        prompt = _PROMPTS[number % len(_PROMPTS)]
        body = json.dumps({"model": "talker", "prompt": prompt, "max_tokens": 8}).encode()

        def right(content: bytes, _: int) -> bool:
            return json.loads(content)["choices"][0]["text"] == self._texts[prompt]

        return self._post(connection, "/v1/completions", body, right)


def _is_right(got: np.ndarray, x: np.ndarray) -> bool:
    want = expected(x).ravel()
    return got.shape == want.shape and bool(np.allclose(got, want, rtol=1e-4, atol=1e-5))


def main() -> int:
    """Run; the value is the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "model.so"
        byoc.compile(product(tirx.Var("n", "int64"))).export_library(str(path))
        byoc.compile(product(tirx.Var("rows", "int64"))).export_library(str(folder / "next.so"))
        write(folder / "talker", LanguageModel(vocabulary=TOKENS, longest=CONTEXT, seed=21))
        generator = byoc.TextGenerator(folder / "talker", threads=1, cache_dir=folder / "cache")
        texts = {prompt: generator.generate(prompt, 8) for prompt in _PROMPTS}
        how = ("--workers", options.workers, "--threads", 1, "--max-batch", 8, "--reload", 0.5)
        service = Service(path, folder / "talker", "--cache-dir", folder / "cache", *map(str, how))
        end = time.monotonic() + options.seconds
        clients = [Client(service.address, index, end, texts) for index in range(options.clients)]
        for client in clients:
            client.start()
        time.sleep(options.seconds / 3)
        os.replace(folder / "next.so", path)
        service.wait_for("model is at version")
        time.sleep(max(0.0, end - time.monotonic() - options.seconds / 4))
        os.kill(min(service.workers()), 9)
        for client in clients:
            client.join()
        status = service.end()
    found = sum((client.found for client in clients), Counter())
    seconds = sorted(second for client in clients for second in client.seconds)
    shown = ", ".join(f"{count} {what}" for what, count in sorted(found.items()))
    print(f"{shown}; {found['right'] / options.seconds:.0f} right answers a second from {options.clients} clients")
    late = 1e3 * seconds[len(seconds) * 99 // 100]
    print(f"half within {1e3 * statistics.median(seconds):.1f} ms, 99 % within {late:.1f} ms")
    print("".join(service.lines), end="")
    allowed = {"right", "429", "cut"}
    # a worker that is killed cuts at most one request of each connection
    is_good = set(found) <= allowed and found["right"] > 0 and found["cut"] <= options.clients and status == 0
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
