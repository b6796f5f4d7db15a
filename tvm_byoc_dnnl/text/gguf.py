"""What a GGUF file says of its tokenizer and its limits, as `Folder` has it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..api.cache import ModelCache
from ..core.errors import InputError, UnsupportedError
from ..frontends.gguf.file import File
from .folder import INPUTS, OUTPUTS, Folder, tokenizers

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

    Raises
    ------
    InputError, UnsupportedError
        If a package is not installed, the file cannot be read, or it has a tokenizer of another kind.
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
        search={"do_sample": False, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "max_length": None},
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
        "tokenizer": _tokenizer(file).to_str(),
        "largest": len(file.get(f"{_KEY}tokens", list)) - 1,
    }
    return json.dumps(said)


def _token(file: File, name: str) -> int | None:
    return file.get(f"{_KEY}{name}", int, None, least=0)


def _tokenizer(file: File) -> Any:
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
