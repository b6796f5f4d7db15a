"""Language models of a server: texts in pieces, several at once, and the form of a conversation."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncGenerator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

from ..core.errors import InputError
from ..core.files import read_text
from ..frontends.gguf.file import File
from ..text.generator import TextGenerator, TextStream
from .metrics import Metrics
from .models import Settings, Source
from .refusals import TIMED_OUT, TOO_MANY, Refusal, status_of

#: texts that are written at the same time, in one process
_AT_ONCE = 16
_CONFIG, _TEMPLATE = "tokenizer_config.json", "chat_template.jinja"


class LanguageModel:
    """A language model that writes texts.

    Parameters
    ----------
    source : Source
        What `TextGenerator` reads.
    settings : Settings
        How it is called. ``timeout`` is for the time until the next piece of a text.

    Raises
    ------
    InputError, UnsupportedError
        As of `TextGenerator`.
    """

    platform = "a language model"
    input_names: Sequence[str] = ()

    def __init__(self, source: Source, settings: Settings) -> None:
        self.name, self.version, self._settings = source.name, source.content(), settings
        self._generator = TextGenerator(source.path, threads=settings.threads, cache_dir=settings.cache_dir)
        self._template = ChatTemplate.read(source.path, self._generator)
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

        Raises
        ------
        InputError
            If the model has no template, or the template refuses the messages.
        """
        if self._template is None:
            raise InputError(f"model {self.name!r} has no template for chats ({_CONFIG}); ask /v1/completions")
        return self._template.render(messages)

    async def write(self, prompts: Sequence[str], **how: Any) -> AsyncGenerator[tuple[int, str, TextStream], None]:
        """Texts behind prompts, in pieces: the number of the prompt, a piece, and the stream that it comes of.

        The last piece of each text is empty.

        Raises
        ------
        Refusal
            If too many texts wait, or a piece takes too long.
        InputError
            As of `TextGenerator.stream`.
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


class ChatTemplate:
    """The text that a model expects of a conversation, as its authors wrote it.

    Parameters
    ----------
    text : str
        A template of Jinja.
    tokens : mapping
        Names of special tokens → their texts.
    adds_begin : bool
        Whether the tokenizer puts the first token in front of a text by itself.
    """

    def __init__(self, text: str, tokens: Mapping[str, str], adds_begin: bool) -> None:
        try:
            from jinja2 import TemplateError
            from jinja2.sandbox import ImmutableSandboxedEnvironment
        except ImportError as error:
            raise InputError("the template for chats needs jinja2: pip install 'tvm-byoc-dnnl[serve]'") from error
        self._errors, self._tokens, self._adds_begin = (TemplateError, TypeError, ValueError), tokens, adds_begin

        def refuse(message: str) -> None:
            raise TemplateError(message)

        made = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        made.globals.update(raise_exception=refuse, strftime_now=lambda form: datetime.now().strftime(form))
        made.filters["tojson"] = lambda value, **how: json.dumps(value, ensure_ascii=False, indent=how.get("indent"))
        try:
            self._template = made.from_string(text)
        except TemplateError as error:
            raise InputError(f"the model's template for chats is no template of Jinja: {error}") from error

    @classmethod
    def read(cls, path: Path, generator: TextGenerator) -> ChatTemplate | None:
        """The template of a folder or a GGUF file, if it has one.

        Raises
        ------
        InputError
            If it cannot be read, or ``jinja2`` is not installed.
        """
        said: dict[str, Any] = {}
        if not path.is_dir():
            text: Any = File(path).get("tokenizer.chat_template", str, None)
        else:
            if (path / _CONFIG).exists():
                try:
                    said = json.loads(read_text(path / _CONFIG, "a tokenizer's configuration"))
                except ValueError as error:
                    raise InputError(f"{path / _CONFIG} is no JSON: {error}") from error
            text = said.get("chat_template")
            if isinstance(text, list):  # several by name
                text = {entry.get("name"): entry.get("template") for entry in text}.get("default")
            if (path / _TEMPLATE).exists():
                text = read_text(path / _TEMPLATE, "a template of Jinja")
        if not isinstance(text, str):
            return None
        folder = generator._folder
        tokens = {name: value.get("content", "") if isinstance(value, dict) else value for name, value in said.items()}
        tokens = {name: text for name, text in tokens.items() if name.endswith("_token") and isinstance(text, str)}
        for name, token in (("bos_token", folder.begin), ("eos_token", min(folder.ends, default=None))):
            if token is not None:
                tokens.setdefault(name, folder.tokenizer.id_to_token(token) or "")
        adds_begin = list(folder.tokenizer.encode("").ids)[:1] == [folder.begin]
        return cls(text, tokens, adds_begin)

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The prompt of a conversation.

        Raises
        ------
        InputError
            If the template refuses it.
        """
        try:
            prompt = self._template.render(messages=messages, add_generation_prompt=True, **self._tokens)
        except self._errors as error:
            raise InputError(f"the model's template refuses the messages: {error}") from error
        begin = self._tokens.get("bos_token", "")
        return prompt.removeprefix(begin) if self._adds_begin else prompt
