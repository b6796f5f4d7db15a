"""`TextGenerator`: a folder of a language model to text."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import TypeVar

from ..api import DEFAULT_COMPILER, compile
from ..api.cache import ModelCache
from ..core.errors import ArgumentTypeError, InputError, check_number, one_of
from ..core.tensor_info import CACHE_DTYPES
from ..frontends import DecoderFile
from ..frontends.gguf import SUFFIX as GGUF
from ..runtime.runner import Runner
from .chat import ChatTemplate
from .conversation import Decoder
from .folder import Folder, from_gguf
from .sampling import Pieces, Sampling
from .stream import TextStream, Turns

Prompt = TypeVar("Prompt", str, list[str])


class TextGenerator:
    """A language model as onnxruntime-genai's model builder writes it, or in a GGUF file; any number of threads may use
    one.

    Parameters
    ----------
    folder : path-like
        It has ``genai_config.json``, ``tokenizer.json`` and the ONNX file that the first one names; or the path of a
        ``.gguf`` file.
    compiler, precision, weights, activations, int8, threads, cache_dir : optional
        As for `compile`. The model is compiled once for all lengths.
    conversations : int
        The most texts for which one step of the model gives tokens. More of them take turns.
    cache_dtype : str, optional
        In which keys and values are kept: ``"float32"``, ``"float16"`` or ``"bfloat16"``; by default as the model says.
        The latter two take half of the memory of the first.

    Raises
    ------
    InputError, UnsupportedError
        If the package ``tokenizers`` (or ``gguf``) is not installed, a file is broken, the tokenizer does not fit the
        model, the model is not a decoder of text with the inputs that the folder names, or as for `compile`; a
        `MissingFileError` if the folder or a file is not there.
    """

    def __init__(
        self,
        folder: str | PathLike[str],
        *,
        compiler: str | Sequence[str] | None = DEFAULT_COMPILER,
        precision: str = "float32",
        weights: str | None = None,
        activations: str | None = None,
        int8: str = "exact",
        threads: int | None = None,
        cache_dir: str | PathLike[str] | None = None,
        conversations: int = 16,
        cache_dtype: str | None = None,
    ) -> None:
        check_number("conversations", conversations)
        one_of("cache_dtype", cache_dtype, (None, *CACHE_DTYPES))
        is_file = isinstance(folder, (str, PathLike)) and Path(folder).suffix == GGUF
        cache = ModelCache(cache_dir) if cache_dir is not None else None
        self._folder = from_gguf(Path(folder), cache) if is_file else Folder.read(folder)
        self._path = Path(folder)
        executable = compile(
            DecoderFile(self._folder.model, self._folder.outputs["logits"], cache_dtype),
            compiler,
            precision=precision,
            weights=weights,
            activations=activations,
            int8=int8,
            threads=threads,
            cache_dir=cache_dir,
        )
        self._most = conversations
        self._turns = Turns(Decoder(self._folder, Runner(executable)), conversations)

    @functools.cached_property
    def chat_template(self) -> ChatTemplate | None:
        """The template for chats that lies beside the model, if there is one; ``render(messages)`` gives a prompt.

        Raises
        ------
        InputError
            If it cannot be read, or the package ``jinja2`` is not installed.
        """
        return ChatTemplate.read(self._path, self._folder)

    def generate(
        self,
        prompt: Prompt,
        max_new_tokens: int | None = None,
        *,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        stop: str | Sequence[str] = (),
        repetition_penalty: float | None = None,
    ) -> Prompt:
        """The text that the model writes behind a prompt.

        It ends before a token that ends a text (``eos_token_id``), before a stop string, and at the limits.

        Parameters
        ----------
        prompt : str or list of str
            The text before, as it is: `chat_template` writes it for a conversation. Several prompts are answered
            together, each as if it were alone.
        max_new_tokens : int, optional
            By default as many as ``max_length`` of the folder leaves. The context length is a limit in any case.
        temperature, top_k, top_p : optional
            Divisor of the logits, the number of tokens among which one is drawn (0: all), and the share of the
            probability that the likeliest tokens together have. With a temperature of 0 or a ``top_k`` of 1 the most
            likely token is taken. What is not given is as the folder says; if none is given, its ``do_sample`` says
            whether tokens are drawn.
        seed : int, optional
            The same seed gives the same text. Without it, each call draws others.
        stop : str or sequence of str
            Strings before which the text ends.
        repetition_penalty : float, optional
            What the logits of tokens of the prompt and the text are divided by, or multiplied where they are below 0.
            By default as the folder says.

        Returns
        -------
        str or list of str
            The text without the prompt; a list for several prompts.

        Raises
        ------
        InputError
            If an argument has another type or range, or a prompt has no tokens, or too many for the context length.
        """

        def stream(of: str) -> TextStream:
            return self.stream(
                of, max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed, stop=stop,
                repetition_penalty=repetition_penalty,
            )  # fmt: skip

        if not isinstance(prompt, list):
            return "".join(stream(prompt))
        streams = [stream(each) for each in prompt]  # all are checked before a text is written
        texts = [""] * len(streams)
        waiting = enumerate(streams)
        active = list(itertools.islice(waiting, self._most))
        while active:
            pieces = [(i, each, next(each, None)) for i, each in active]
            for i, _, piece in pieces:
                texts[i] += piece or ""
            active = [(i, each) for i, each, piece in pieces if piece is not None]
            active += itertools.islice(waiting, self._most - len(active))
        return texts

    def stream(
        self,
        prompt: str,
        max_new_tokens: int | None = None,
        *,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        stop: str | Sequence[str] = (),
        repetition_penalty: float | None = None,
    ) -> TextStream:
        """The same text in pieces, each as soon as it is known; parameters and errors as for `generate`.

        Texts that are open at the same time share the steps of the model, also where threads of their own read them.

        Returns
        -------
        TextStream
            An iterator of strings; ``close`` cancels.
        """
        if not isinstance(prompt, str):
            raise ArgumentTypeError(
                f"prompt is a {type(prompt).__name__}; expected a text, or a list of texts for `generate`"
            )
        stops = [stop] if isinstance(stop, str) else stop
        if not isinstance(stops, (list, tuple)) or not all(isinstance(s, str) and s for s in stops):
            raise InputError(f"stop is {stop!r}; expected a text that is not empty, or several")
        check_number("max_new_tokens", max_new_tokens)
        folder, ids = self._folder, self._tokens(prompt)
        sampling = Sampling(temperature, top_k, top_p, seed, folder.search, repetition_penalty, ids)
        name, most = "context_length", folder.context
        if max_new_tokens is None and (folder.search["max_length"] or most) < most:
            name, most = "max_length", folder.search["max_length"]
        if len(ids) >= most:
            raise InputError(
                f"prompt has {len(ids)} tokens, and prompt and text together may have {most} ({name} of the folder); "
                "give a shorter one"
            )
        limit = min(most - len(ids), max_new_tokens or most)
        pieces = Pieces(folder.tokenizer, ids, stops)
        return TextStream(self._turns, ids, sampling, pieces, limit, folder.ends)

    def _tokens(self, prompt: str) -> list[int]:
        folder = self._folder
        try:
            prompt.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"prompt is no text: {error}") from error
        ids = list(folder.tokenizer.encode(prompt).ids)
        if not ids and folder.begin is not None:
            ids = [folder.begin]
        if not ids:
            raise InputError("prompt has no tokens, and the model has none for the beginning of a text; give a text")
        return ids
