"""Templates for chats: the prompt of a conversation, as the authors of a model wrote it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from ..core.errors import InputError
from ..core.files import read_text
from .folder import Folder

__all__ = ["ChatTemplate"]

_CONFIG, _TEMPLATE = "tokenizer_config.json", "chat_template.jinja"


class ChatTemplate:
    """The text that a model expects of a conversation, as its authors wrote it.

    ``text``: a template of Jinja. ``tokens``: names of special tokens → their texts. ``adds_begin``: whether the
    tokenizer puts the first token in front of a text by itself.
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
    def read(cls, path: Path, folder: Folder) -> ChatTemplate | None:
        """The template of a folder or a GGUF file, if it has one; ``folder`` is what was read there.

        Raises `InputError` if it cannot be read, or ``jinja2`` is not installed.
        """
        said: dict[str, Any] = {}
        text: Any = folder.template
        if path.is_dir():
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
        tokens = {name: value.get("content", "") if isinstance(value, dict) else value for name, value in said.items()}
        tokens = {name: text for name, text in tokens.items() if name.endswith("_token") and isinstance(text, str)}
        for name, token in (("bos_token", folder.begin), ("eos_token", min(folder.ends, default=None))):
            if token is not None:
                tokens.setdefault(name, folder.tokenizer.id_to_token(token) or "")
        adds_begin = list(folder.tokenizer.encode("").ids)[:1] == [folder.begin]
        return cls(text, tokens, adds_begin)

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The prompt of a conversation, which `TextGenerator.generate` takes.

        ``messages``: ``{"role": "user", "content": "…"}``, and what else the template reads. Raises `InputError` if the
        template refuses it.
        """
        try:
            prompt = self._template.render(messages=messages, add_generation_prompt=True, **self._tokens)
        except self._errors as error:
            raise InputError(f"the model's template refuses the messages: {error}") from error
        begin = self._tokens.get("bos_token", "")
        return prompt.removeprefix(begin) if self._adds_begin else prompt
