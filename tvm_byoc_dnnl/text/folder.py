"""The folder of a language model as onnxruntime-genai's model builder writes it, or its GGUF file."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from ..api.cache import ModelCache
from ..core.errors import ArgumentTypeError, InputError, MissingFileError, UnsupportedError, of_kind, wrong_value
from ..core.files import read_text
from ..frontends.gguf import File

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
#: how tokens are chosen: name → kind, and what is usual where a folder does not say it
_SEARCH: dict[str, tuple[type, Any]] = {
    "do_sample": (bool, False),
    "temperature": (float, 1.0),
    "top_k": (float, 0),
    "top_p": (float, 1.0),
    "max_length": (int, None),
    "repetition_penalty": (float, 1.0),
}
#: what is not done → its value that asks for nothing
_LEFT = {"num_beams": 1, "num_return_sequences": 1, "no_repeat_ngram_size": 0, "min_length": 0, "random_seed": -1}
_NEEDED = object()
_logger = logging.getLogger("tvm_byoc_dnnl")


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
        How tokens are chosen by default: do_sample, temperature, top_k, top_p, max_length,
        repetition_penalty.
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

        Raises `InputError` if ``tokenizers`` is not installed, or a file is broken or says something that cannot be; a
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
            search=said.search(),
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

    def search(self) -> dict[str, Any]:
        """How tokens are chosen; what is asked for and not done is said in a warning."""
        for name, plain in _LEFT.items():
            if (value := self.get(f"search.{name}", float, plain)) != plain:
                _logger.warning("%s: search.%s is %s, which has no effect here", self._path, name, value)
        found = {name: self.get(f"search.{name}", kind, usual) for name, (kind, usual) in _SEARCH.items()}
        return found | {"top_p": found["top_p"] or 1.0}  # 0 is: not used

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


_KEY = "tokenizer.ggml."
#: types of tokens
_UNKNOWN, _CONTROL, _OF_USER = 2, 3, 4
_ENDS = r"\s+(?!\S)|\s+"
_WORDS = (r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|" + _ENDS,)
_LATER = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|" + _ENDS
#: of these a word that is a token is one, whatever pairs it has; and a text begins with a token
_LLAMA_3 = ("llama-bpe", "llama3", "llama-v3")
#: name → the expressions by which a text is cut before pairs are joined
_CUTS = {
    "gpt-2": _WORDS,
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r"), (r"\p{N}", *_WORDS)),
    **dict.fromkeys(_LLAMA_3, (_LATER % "{1,3}",)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), (_LATER % "",)),
}
_SPACE = "\u2581"


def from_gguf(path: Path, cache: ModelCache | None = None) -> Folder:
    """Read a file; what is made of its tokens is found in ``cache`` the next time.

    Raises `InputError`, `UnsupportedError` if a package is not installed, the file cannot be read, or it has a
    tokenizer of another kind.
    """
    package = tokenizers()
    said = json.loads(cache.text(path, lambda: _said(path)) if cache is not None else _said(path))
    return Folder(
        model=path,
        tokenizer=package.Tokenizer.from_str(said["tokenizer"]),
        largest=said["largest"],
        inputs=INPUTS,
        outputs=OUTPUTS,
        layers=said["layers"],
        head_size=None,
        window=None,
        context=said["context"],
        ends=frozenset(said["ends"]),
        begin=said["begin"],
        vocabulary=None,
        search={name: usual for name, (_, usual) in _SEARCH.items()},
        template=said["template"],
    )


def _said(path: Path) -> str:
    """What a file says, as JSON; its tokenizer as the package ``tokenizers`` writes it."""
    file = File(path)
    arch = file.get("general.architecture", str)
    names = ("eos_token_id", "eot_token_id", "eom_token_id")
    said = {
        "layers": file.get(f"{arch}.block_count", int),
        "context": file.get(f"{arch}.context_length", int),
        "ends": [token for name in names if (token := _token(file, name)) is not None],
        "begin": _token(file, "bos_token_id"),
        "template": file.get("tokenizer.chat_template", str, None),
        "tokenizer": _own_tokenizer(file).to_str(),
        "largest": len(file.get(f"{_KEY}tokens", list)) - 1,
    }
    return json.dumps(said)


def _token(file: File, name: str) -> int | None:
    return file.get(f"{_KEY}{name}", int, None, least=0)


def _own_tokenizer(file: File) -> Any:
    kinds = {"gpt2": _byte_pairs, "llama": _sentence_pieces}
    kind = file.get(f"{_KEY}model", str)
    if kind not in kinds:
        raise UnsupportedError(f"{file.path} has a tokenizer of the kind {kind!r}; expected one of {', '.join(kinds)}")
    of = tokenizers()
    tokens = file.get(f"{_KEY}tokens", list)
    types = file.get(f"{_KEY}token_type", list, [1] * len(tokens))
    try:
        numbers = {token: i for i, token in enumerate(tokens)}
        tokenizer, begins = kinds[kind](file, of, numbers, dict(zip(tokens, types, strict=True)))
        for token, type_ in zip(tokens, types, strict=True):
            if type_ in (_UNKNOWN, _CONTROL, _OF_USER):
                added = of.AddedToken(token, special=type_ != _OF_USER, normalized=False)
                (tokenizer.add_special_tokens if added.special else tokenizer.add_tokens)([added])
        begin = _token(file, "bos_token_id")
        if begin is not None and file.get(f"{_KEY}add_bos_token", bool, begins):
            first = tokens[begin]
            tokenizer.post_processor = of.processors.TemplateProcessing(
                single=[first, "$A"], special_tokens=[(first, begin)]
            )
    except (InputError, UnsupportedError):
        raise
    except Exception as error:  # the package raises Exception itself
        raise InputError(f"cannot read the tokenizer of {file.path}: {error}; convert the model again") from error
    return tokenizer


def _byte_pairs(file: File, of: Any, numbers: Mapping[str, int], _types: Mapping[str, int]) -> tuple[Any, bool]:
    """Pairs of bytes, joined in words; and whether a text begins with a token."""
    cut = file.get(f"{_KEY}pre", str, "gpt-2")
    if cut not in _CUTS:
        known = ", ".join(_CUTS)
        raise UnsupportedError(f"{file.path} cuts texts as {cut!r} ({_KEY}pre); expected one of {known}")
    merges = [tuple(pair.split(" ")) for pair in file.get(f"{_KEY}merges", list)]
    pre = of.pre_tokenizers
    made = of.Tokenizer(of.models.BPE(dict(numbers), merges, ignore_merges=cut in _LLAMA_3))
    cuts = [pre.Split(of.Regex(expression), "isolated") for expression in _CUTS[cut]]
    made.pre_tokenizer = pre.Sequence([*cuts, pre.ByteLevel(add_prefix_space=False, use_regex=False)])
    made.decoder = of.decoders.ByteLevel()
    return made, cut in _LLAMA_3


def _sentence_pieces(file: File, of: Any, numbers: Mapping[str, int], types: Mapping[str, int]) -> tuple[Any, bool]:
    """Pieces that are joined in the order of their scores; and whether a text begins with a token."""
    scores = dict(zip(numbers, file.get(f"{_KEY}scores", list), strict=True))
    pairs = [
        (-scores[piece], numbers[left], numbers[right], left, right)
        for piece in numbers
        for i in range(1, len(piece))
        if (left := piece[:i]) in numbers and (right := piece[i:]) in numbers
    ]
    merges = [pair[3:] for pair in sorted(pairs)]
    unknown = next((token for token, type_ in types.items() if type_ == _UNKNOWN), None)
    made = of.Tokenizer(of.models.BPE(dict(numbers), merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    is_led = file.get(f"{_KEY}add_space_prefix", bool, True)
    spaces, plain = of.normalizers.Replace(" ", _SPACE), of.decoders
    made.normalizer = of.normalizers.Sequence([of.normalizers.Prepend(_SPACE), spaces]) if is_led else spaces
    steps = [plain.Replace(_SPACE, " "), plain.ByteFallback(), plain.Fuse()]
    made.decoder = plain.Sequence([*steps, plain.Strip(" ", 1, 0)] if is_led else steps)
    return made, True
