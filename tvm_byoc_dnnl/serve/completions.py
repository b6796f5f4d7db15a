"""Texts and chats by OpenAI's protocol: /v1/completions and /v1/chat/completions."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from ..core.errors import InputError, check_number
from . import FAILED
from .language import LanguageModel
from .rest import Rest, error_answer
from .tensors import read_json

#: what only one value of is possible
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "logprobs": (False, 0),
    "top_logprobs": (0,),
    "logit_bias": ({},),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "response_format": ({"type": "text"},),
    "tools": ([],),
    "functions": ([],),
}
_SAMPLING = ("temperature", "top_k", "top_p", "seed", "stop", "repetition_penalty")
#: tokens of a completion that says no number, as OpenAI has it
_USUAL_LENGTH = 16


class Completions:
    """The addresses of language models; ``rest`` reads bodies, and knows the models."""

    def __init__(self, rest: Rest) -> None:
        self._rest, self._models = rest, rest.models

    def routes(self) -> list[Route]:
        """Addresses and the methods that answer them."""
        return [
            Route("/v1/models", self.models),
            Route("/v1/completions", self.complete, methods=["POST"]),
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
        ]

    async def models(self, _: Request) -> Response:
        """The language models."""
        names = [model.name for model in self._models if isinstance(model, LanguageModel)]
        data = [{"id": name, "object": "model", "created": 0, "owned_by": "tvm-byoc"} for name in names]
        return JSONResponse({"object": "list", "data": data})

    async def complete(self, request: Request) -> Response:
        """What follows a text, or each of several."""
        asked = read_json(await self._rest.body(request))
        prompts = asked.get("prompt")
        prompts = [prompts] if isinstance(prompts, str) else prompts
        if not isinstance(prompts, list) or not prompts or not all(isinstance(p, str) for p in prompts):
            raise InputError("prompt is no text; expected a text, or a list of texts")
        length = check_number("max_tokens", asked.get("max_tokens", _USUAL_LENGTH))
        return await self._answer(request, asked, self._model(asked), prompts, length, is_chat=False)

    async def chat(self, request: Request) -> Response:
        """The next message of a conversation."""
        asked = read_json(await self._rest.body(request))
        model = self._model(asked)
        prompt = model.prompt(_messages(asked.get("messages")))
        name = "max_completion_tokens" if "max_completion_tokens" in asked else "max_tokens"
        length = check_number(name, asked.get(name))
        return await self._answer(request, asked, model, [prompt], length, is_chat=True)

    def _model(self, asked: Mapping[str, Any]) -> LanguageModel:
        name = asked.get("model")
        if not isinstance(name, str):
            raise InputError(f"model is {name!r:.60}; expected the name of a model, as /v1/models lists them")
        for key, allowed in _NEUTRAL.items():
            if asked.get(key) is not None and asked[key] not in allowed:
                raise InputError(f"{key} is {asked[key]!r:.60}; expected {allowed[0]!r}, or leave it out")
        return self._models.find(name, kind=LanguageModel)

    async def _answer(
        self, request: Request, asked: Mapping[str, Any], model: LanguageModel, prompts: list[str], length: Any,
        is_chat: bool,
    ) -> Response:  # fmt: skip
        how = {name: asked[name] for name in _SAMPLING if asked.get(name) is not None}
        texts = model.write(prompts, max_new_tokens=length, **how)
        kind = "chat.completion" if is_chat else "text_completion"
        record = {
            "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{uuid.uuid4().hex}",
            "object": kind,
            "created": int(time.time()),
            "model": model.name,
        }
        if asked.get("stream"):
            first = await anext(texts)  # what is wrong is an answer of its own before the first piece
            options = asked.get("stream_options")
            wants_usage = isinstance(options, dict) and bool(options.get("include_usage"))
            record["object"] = "chat.completion.chunk" if is_chat else kind
            events = self._events(first, texts, record, is_chat, wants_usage)
            return StreamingResponse(events, media_type="text/event-stream", headers={"Cache-Control": "no-store"})
        written, streams = [""] * len(prompts), {}
        async with aclosing(texts):
            async for index, piece, stream in texts:
                written[index] += piece
                streams[index] = stream
                if await request.is_disconnected():
                    break
        choices = [
            {
                "index": index,
                **({"message": {"role": "assistant", "content": text}} if is_chat else {"text": text}),
                "logprobs": None,
                "finish_reason": _reason(streams.get(index)),
            }
            for index, text in enumerate(written)
        ]
        return JSONResponse({**record, "choices": choices, "usage": _usage(streams)})

    async def _events(
        self, first: Any, texts: AsyncGenerator[Any, None], record: Mapping[str, Any], is_chat: bool,
        wants_usage: bool,
    ) -> AsyncIterator[str]:  # fmt: skip
        """The pieces as events that a server sends."""
        streams: dict[int, Any] = {}

        def event(index: int, piece: str, reason: str | None) -> str:
            delta = {"role": "assistant"} if index not in streams else {}
            text = {"delta": {**delta, **({"content": piece} if piece else {})}} if is_chat else {"text": piece}
            choice = {"index": index, **text, "logprobs": None, "finish_reason": reason}
            return _event({**record, "choices": [choice]})

        try:
            async with aclosing(texts):
                item = first
                while item is not None:
                    index, piece, stream = item
                    yield event(index, piece, None if piece else _reason(stream))
                    streams[index] = stream
                    item = await anext(texts, None)
        except Exception as error:
            yield _event({"error": error_record(error)})
            return
        if wants_usage:
            yield _event({**record, "choices": [], "usage": _usage(streams)})
        yield "data: [DONE]\n\n"


def error_record(error: BaseException) -> dict[str, Any]:
    """An error as OpenAI's clients read it."""
    status, message = error_answer(error)
    kind = "server_error" if status >= FAILED else "invalid_request_error"
    return {"message": message, "type": kind, "param": None, "code": status}


def _event(record: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(record, ensure_ascii=False, separators=(',', ':'))}\n\n"


def _reason(stream: Any) -> str | None:
    return None if stream is None else "length" if stream.finished == "length" else "stop"


def _usage(streams: Mapping[int, Any]) -> dict[str, int]:
    prompt = sum(stream.prompt_tokens for stream in streams.values())
    text = sum(stream.tokens for stream in streams.values())
    return {"prompt_tokens": prompt, "completion_tokens": text, "total_tokens": prompt + text}


def _messages(given: Any) -> list[dict[str, Any]]:
    """Messages whose contents are texts. Raises `InputError` if they are none, or have something else than text."""
    if not isinstance(given, list) or not given or not all(isinstance(each, dict) for each in given):
        raise InputError(f"messages is {given!r:.60}; expected a list of objects with role and content")
    found = []
    for each in given:
        content = each.get("content")
        if isinstance(content, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in content):
            content = "".join(str(part.get("text", "")) for part in content)
        if not isinstance(each.get("role"), str) or not isinstance(content, str):
            raise InputError(f"a message is {each!r:.80}; expected a role and a content, both texts")
        found.append({**each, "content": content})
    return found
