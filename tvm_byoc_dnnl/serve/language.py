"""Language models of a server: texts in pieces, several at once."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..core.errors import InputError
from ..text.generator import TextGenerator, TextStream
from . import TIMED_OUT, TOO_MANY, Metrics, Refusal, status_of
from .models import Settings, Source

#: texts that are written at the same time, in one process
_AT_ONCE = 16


class LanguageModel:
    """A language model that writes texts.

    ``source``: what `TextGenerator` reads. ``settings``: how it is called. ``timeout`` is for the time until the next
    piece of a text. Raises `InputError`, `UnsupportedError` as of `TextGenerator`.
    """

    platform = "a language model"
    input_names: Sequence[str] = ()

    def __init__(self, source: Source, settings: Settings) -> None:
        self.name, self.version, self._settings = source.name, source.content(), settings
        self._generator = TextGenerator(source.path, threads=settings.threads, cache_dir=settings.cache_dir)
        self._template = self._generator.chat_template
        self._generator.generate("a", 2)  # packs the weights before there are several processes

    def start(self, metrics: Metrics) -> None:
        """Write texts, in threads of this process."""
        self._metrics, self._open = metrics, 0
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="tvm_byoc_dnnl.text")

    def close(self) -> None:
        """Finish what has begun, and end."""
        self._pool.shutdown(wait=False)

    def metadata(self) -> dict[str, Any]:
        """What the Open Inference Protocol says of a model; this one has no tensors."""
        return {"name": self.name, "versions": [self.version], "platform": "tvm_byoc_dnnl", "inputs": [], "outputs": []}

    def waiting(self) -> int:
        """Texts that have not begun."""
        return max(0, self._open - _AT_ONCE)

    def prompt(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The prompt of a conversation.

        Raises `InputError` if the model has no template, or the template refuses the messages.
        """
        if self._template is None:
            raise InputError(
                f"model {self.name!r} has no template for chats (tokenizer_config.json); ask /v1/completions"
            )
        return self._template.render(messages)

    async def write(self, prompts: Sequence[str], **how: Any) -> AsyncGenerator[tuple[int, str, TextStream], None]:
        """Texts behind prompts, in pieces: the number of the prompt, a piece, and the stream that it comes of.

        The last piece of each text is empty. Raises `Refusal` if too many texts wait, or a piece takes too long;
        `InputError` as of `TextGenerator.stream`.
        """
        with self._metrics.request(self.name, status_of):
            async with contextlib.aclosing(self._pieces(prompts, how)) as pieces:
                async for item in pieces:
                    yield item

    async def _pieces(self, prompts: Sequence[str], how: Mapping[str, Any]) -> AsyncGenerator[Any, None]:
        if self._open + len(prompts) > _AT_ONCE + self._settings.places:
            raise Refusal(TOO_MANY, f"{self.waiting()} texts wait already; try again later")
        loop, pieces = asyncio.get_running_loop(), asyncio.Queue[Any]()
        is_cancelled, streams = threading.Event(), [self._generator.stream(prompt, **how) for prompt in prompts]

        def put(item: Any) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(pieces.put_nowait, item)

        def read(index: int, stream: TextStream) -> None:
            try:
                while not is_cancelled.is_set() and (piece := next(stream, "")):
                    put((index, piece, stream))
                stream.close()
                put((index, "", stream))
            except BaseException as error:
                put(error)

        self._open += len(streams)
        try:
            for index, stream in enumerate(streams):
                self._pool.submit(read, index, stream).add_done_callback(lambda _: put(None))
            left = len(streams)
            while left:
                try:
                    item = await asyncio.wait_for(pieces.get(), self._settings.timeout)
                except asyncio.TimeoutError:
                    raise Refusal(TIMED_OUT, f"no text within {self._settings.timeout:g} s") from None
                if isinstance(item, BaseException):
                    raise item
                if item is None:
                    left -= 1
                else:
                    yield item
        finally:
            is_cancelled.set()
            self._open -= len(streams)
            for stream in streams:
                self._metrics.tokens(self.name, stream.prompt_tokens, stream.tokens)
