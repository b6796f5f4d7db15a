"""The folder of a language model as onnxruntime-genai's model builder writes it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from ..core.errors import ArgumentTypeError, InputError, MissingFileError, of_kind, wrong_value
from ..core.files import read_text

CONFIG, TOKENIZER = "genai_config.json", "tokenizer.json"
INPUTS = {
    "input_ids": "input_ids",
    "attention_mask": "attention_mask",
    "position_ids": "position_ids",
    "past_key_names": "past_key_values.%d.key",
    "past_value_names": "past_key_values.%d.value",
}
OUTPUTS = {
    "logits": "logits",
    "present_key_names": "present.%d.key",
    "present_value_names": "present.%d.value",
}
_NEEDED = object()


@dataclass(frozen=True)
class Folder:
    """What the files of a folder say, or one that has all of it.

    Attributes
    ----------
    model : Path
        The file of the decoder.
    tokenizer : tokenizers.Tokenizer
        Text to numbers and back; prompts are neither cut nor padded.
    largest : int
        The largest of the numbers.
    inputs, outputs : dict
        Role → name in the model.
    layers : int
        Of the decoder; some of them have caches.
    head_size, window : int or None
        Columns of a cache, and the rows that a cache that slides needs.
    context : int
        Tokens of prompt and text together.
    ends : frozenset of int
        Tokens behind which there is no text.
    begin : int or None
        The token in front of a text.
    vocabulary : int or None
        The number of logits, if the folder says it.
    search : dict
        How tokens are chosen by default: do_sample, temperature, top_k, top_p, max_length.
    template : str or None
        For chats, if it is in no file of its own.
    """

    model: Path
    tokenizer: Any
    largest: int
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    layers: int
    head_size: int | None
    window: int | None
    context: int
    ends: frozenset[int]
    begin: int | None
    vocabulary: int | None
    search: Mapping[str, Any]
    template: str | None = None

    @classmethod
    def read(cls, path: str | PathLike[str]) -> Folder:
        """Read a folder.

        Raises
        ------
        InputError
            If ``tokenizers`` is not installed, or a file is broken or says something that cannot be; a
            `MissingFileError` if the folder or a file of it is not there.
        """
        if not isinstance(path, (str, PathLike)):
            raise ArgumentTypeError(f"folder is a {type(path).__name__}; expected the path of a folder")
        folder = Path(path)
        if not os.path.isdir(folder):  # also where the system takes no such name
            raise MissingFileError(
                f"{folder} is no folder; expected one that onnxruntime-genai's model builder wrote, or a .gguf file"
            )
        said = _Config(_file(folder, CONFIG))
        inputs = INPUTS | said.names("model.decoder.inputs")
        outputs = OUTPUTS | said.names("model.decoder.outputs")
        window = said.get("model.decoder.sliding_window.window_size", int, None)
        tokenizer = _tokenizer(_file(folder, TOKENIZER))
        return cls(
            model=_file(folder, said.get("model.decoder.filename", str)),
            tokenizer=tokenizer,
            largest=max(tokenizer.get_vocab(with_added_tokens=True).values(), default=0),
            inputs=inputs,
            outputs=outputs,
            layers=said.get("model.decoder.num_hidden_layers", int),
            head_size=said.get("model.decoder.head_size", int, None),
            window=window and window + int(said.get("model.decoder.sliding_window.cache_slack", float, 0)),
            context=said.get("model.context_length", int),
            ends=said.tokens("model.eos_token_id"),
            begin=min(said.tokens("model.bos_token_id"), default=None),
            vocabulary=said.get("model.vocab_size", int, None),
            search={
                "do_sample": said.get("search.do_sample", bool, False),
                "temperature": said.get("search.temperature", float, 1.0),
                "top_k": said.get("search.top_k", float, 0),
                "top_p": said.get("search.top_p", float, 1.0) or 1.0,  # 0 is: not used
                "max_length": said.get("search.max_length", int, None),
            },
        )

    def caches(self, names: Collection[str]) -> dict[str, str]:
        """Those inputs that are caches → names of the outputs that are the inputs of the next step."""
        found = {}
        for role, pattern in self.inputs.items():
            kind = re.fullmatch(r"past(\w*_names)", role)
            if kind is None or (present := self.outputs.get(f"present{kind[1]}")) is None:
                continue
            past = re.compile(re.escape(pattern).replace("%d", r"(\d+)", 1) + "()")
            for match in filter(None, map(past.fullmatch, names)):
                if int(match[1] or 0) < self.layers:
                    found[match[0]] = present.replace("%d", match[1])
        return found


def _file(folder: Path, name: str) -> Path:
    path = folder / name
    if not path.is_file():
        raise MissingFileError(f"no file {path}; a folder of onnxruntime-genai's model builder has one")
    return path


class _Config:
    """The values of a JSON file by their dotted names; what is missing or of another type is an error."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._values = _parsed(path)

    def _find(self, name: str) -> Any:
        value = self._values
        for part in name.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return value

    def get(self, name: str, kind: type, default: Any = _NEEDED) -> Any:
        """A value, as `of_kind` checks it."""
        value = self._find(name)
        return default if value is None and default is not _NEEDED else of_kind(self._path, name, value, kind)

    def names(self, name: str) -> dict[str, str]:
        """The texts of an object, by role."""
        found = self.get(name, dict, {})
        return {role: self.get(f"{name}.{role}", str) for role in found}

    def tokens(self, name: str) -> frozenset[int]:
        """One token, several or none."""
        value = self._find(name)
        several = value if isinstance(value, list) else [] if value is None else [value]
        if not all(isinstance(token, int) and not isinstance(token, bool) and token >= 0 for token in several):
            raise wrong_value(self._path, name, value, "a token's number, or a list of them")
        return frozenset(several)


def _parsed(path: Path) -> Any:
    try:
        return json.loads(read_text(path, "JSON"))
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"cannot read {path}: it is no JSON ({error}); write the folder again") from error


def tokenizers() -> Any:
    """The package of this name."""
    try:
        import tokenizers as package
    except ImportError as error:
        raise InputError("text needs the package tokenizers: pip install 'tvm-byoc-dnnl[text]'") from error
    return package


def _tokenizer(path: Path) -> Any:
    package, text = tokenizers(), read_text(path, "a tokenizer")
    try:
        tokenizer = package.Tokenizer.from_str(text)
    except Exception as error:  # the package raises Exception itself
        _parsed(path)
        raise InputError(f"cannot read {path} as a tokenizer: {error}; write the folder again") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
