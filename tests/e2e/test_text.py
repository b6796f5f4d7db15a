"""Text from the folder of a language model: ONNX Runtime's tokens, pieces, limits, and one error for each fault."""

from __future__ import annotations

import json
import random
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import tvm_byoc_dnnl as byoc
from tvm_byoc_dnnl import cli
from tvm_byoc_dnnl.core.errors import MissingFileError
from tvm_byoc_dnnl.text import conversation
from tvm_byoc_dnnl.text.sampling import Pieces, Sampling

from .language_model import LanguageModel
from .test_language_model import generated, runtime

pytestmark = pytest.mark.native

TOKENS = 300
PROMPT = "The cat sat on the mat, naïve as ever."
CONTEXT = 64
KINDS = {
    "grows": LanguageModel(vocabulary=TOKENS, longest=CONTEXT, bias=True, seed=21),
    "slides, int4": LanguageModel(vocabulary=TOKENS, longest=CONTEXT, bits=4, window=6, slides=True, seed=22),
}


def tokenizer() -> Tokenizer:
    """Bytes, and some pairs of them."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=TOKENS,
        special_tokens=["<begin>", "<end>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(["the cat sat on the mat, the hat and the bat that ate the rat " * 5], trainer)
    return made


def write(path: Path, of: LanguageModel, **changes: Any) -> Path:
    """A folder as the builder writes it; changes are of ``model`` or ``search``."""
    path.mkdir()
    onnx.save(of.model(), path / "model.onnx")
    tokenizer().save(str(path / "tokenizer.json"))
    decoder = {
        "filename": "model.onnx",
        "head_size": of.width,
        "hidden_size": of.hidden,
        "inputs": {
            "input_ids": "input_ids",
            "attention_mask": "attention_mask",
            "past_key_names": "past_key_values.%d.key",
            "past_value_names": "past_key_values.%d.value",
        },
        "outputs": {
            "logits": "logits",
            "present_key_names": "present.%d.key",
            "present_value_names": "present.%d.value",
        },
        "num_hidden_layers": of.layers,
        "num_key_value_heads": of.kv_heads,
    }
    if of.slides:
        decoder["sliding_window"] = {"window_size": of.window, "layers": [0, 1], "cache_slack": 0}
    model = {
        "bos_token_id": 0,
        "context_length": CONTEXT,
        "decoder": decoder,
        "eos_token_id": 1,
        "pad_token_id": 0,
        "type": "llama",
        "vocab_size": TOKENS,
    }
    search = {"do_sample": False, "max_length": CONTEXT, "temperature": 1.0, "top_k": 50, "top_p": 1.0}
    config = {"model": model, "search": search}
    for name, value in changes.items():
        config["search" if name in search else "model"][name] = value
    (path / "genai_config.json").write_text(json.dumps(config))
    return path


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("text") / "model", KINDS["grows"])


@pytest.fixture(scope="module")
def generator(folder: Path, cache: Path) -> byoc.TextGenerator:
    return byoc.TextGenerator(folder, threads=1, cache_dir=cache)


@pytest.fixture
def changed(tmp_path: Path, folder: Path) -> Callable[[Callable[[dict], Any]], Path]:
    """A copy of the folder whose configuration a function has changed."""

    def copy(change: Callable[[dict], Any]) -> Path:
        path = Path(shutil.copytree(folder, tmp_path / "changed"))
        config = json.loads((path / "genai_config.json").read_text())
        change(config)
        (path / "genai_config.json").write_text(json.dumps(config))
        return path

    return copy


# ---------------------------------------------------------------- the text
@pytest.mark.parametrize("of", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("block", [512, 4], ids=["prompt at once", "prompt in blocks"])
def test_greedy_text_is_that_of_onnx_runtime(
    of: LanguageModel, block: int, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversation, "_BLOCK", block)
    generator = byoc.TextGenerator(write(tmp_path / "model", of), threads=1, cache_dir=cache)
    assert generator._turns._decoder._runner.outputs[0].shape == ("batch_size", 1, TOKENS)  # of the last position
    text = generator.generate(PROMPT, 12)
    encoded = tokenizer()
    ids = encoded.encode(PROMPT).ids
    tokens, _ = generated(runtime(of), of, np.array([ids]), [len(ids)], 12)
    everything = encoded.decode([*ids, *(int(token[0]) for token in tokens)])
    assert everything == PROMPT + text and text


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_caches_in_half_of_the_memory(folder: Path, generator: byoc.TextGenerator, cache: Path, dtype: str) -> None:
    half = byoc.TextGenerator(folder, threads=1, cache_dir=cache, cache_dtype=dtype)
    prompts = [PROMPT, "the rat"]
    assert half.generate(prompts, 20) == [half.generate(p, 20) for p in prompts]
    stored, whole = half.stream(PROMPT), generator.stream(PROMPT)
    next(stored), next(whole)
    of = [g._turns._decoder.caches._memory for g in (half, generator)]
    assert {str(array.dtype) for array in of[0].values()} == {dtype}
    assert 2 * sum(a.nbytes for a in of[0].values()) == sum(a.nbytes for a in of[1].values())
    with pytest.raises(byoc.InputError, match="cache_dtype is 'int8'; expected one of None, 'float32'"):
        byoc.TextGenerator(folder, cache_dtype="int8")


def test_pieces_are_the_text(generator: byoc.TextGenerator) -> None:
    stream = generator.stream(PROMPT, 20)
    pieces = list(stream)
    assert "".join(pieces) == generator.generate(PROMPT, 20)
    assert len(pieces) > 5 and all(pieces)
    assert (stream.prompt_tokens, stream.tokens, stream.steps) == (len(tokenizer().encode(PROMPT).ids), 20, 19)
    assert list(stream) == []


def test_several_prompts_are_each_as_if_alone(generator: byoc.TextGenerator) -> None:
    prompts = [PROMPT, "a", ""]
    together = generator.generate(prompts, 8, temperature=0.9, seed=5)
    assert together == [generator.generate(p, 8, temperature=0.9, seed=5) for p in prompts]
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(lambda p: generator.generate(p, 8, temperature=0.9, seed=5), prompts)) == together
    first, second = (generator.stream(p, 8) for p in prompts[:2])
    turns = [text for pair in zip(first, second, strict=False) for text in pair]
    assert turns[::2] == list(generator.stream(prompts[0], 8))[: len(turns[::2])]


def test_what_decides_whether_tokens_are_drawn(
    generator: byoc.TextGenerator, changed: Callable[..., Path], cache: Path
) -> None:
    greedy = generator.generate(PROMPT, 16)
    assert greedy == generator.generate(PROMPT, 16, temperature=0) == generator.generate(PROMPT, 16, top_k=1)
    drawn = generator.generate(PROMPT, 16, temperature=1.5, seed=1)
    assert drawn == generator.generate(PROMPT, 16, temperature=1.5, seed=1) != greedy
    assert drawn != generator.generate(PROMPT, 16, temperature=1.5, seed=2)
    samples = byoc.TextGenerator(
        changed(lambda c: c["search"].update(do_sample=True, temperature=1.5)), threads=1, cache_dir=cache
    )
    assert samples.generate(PROMPT, 16, seed=1) == drawn


DEFAULTS = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "repetition_penalty": 1.0}


@pytest.mark.parametrize(
    ("settings", "allowed"),
    [
        ({}, {0, 1, 2, 3}),
        ({"top_k": 2}, {1, 3}),
        ({"top_p": 0.6}, {1, 3}),
        ({"top_p": 0.3}, {3}),
        ({"top_k": 3, "top_p": 0.6}, {1, 3}),
        ({"temperature": 1e-300}, {3}),
        ({"top_k": 9}, {0, 1, 2, 3}),
    ],
    ids=str,
)
def test_tokens_are_drawn_among_the_likeliest(settings: dict[str, Any], allowed: set[int]) -> None:
    logits = np.log(np.array([0.1, 0.3, 0.2, 0.4, 0.0], "float32") + 1e-30).astype("float32")
    logits[4] = -np.inf
    given = {"temperature": None, "top_k": None, "top_p": None} | settings
    choose = Sampling(**given, seed=0, defaults=DEFAULTS)
    drawn = np.array([choose(logits) for _ in range(600)])
    assert set(drawn.tolist()) == allowed
    if not settings:
        np.testing.assert_allclose(np.bincount(drawn, minlength=4) / 600, [0.1, 0.3, 0.2, 0.4], atol=0.06)


def test_tokens_that_were_there_before_are_less_likely() -> None:
    logits = np.array([2.0, 3.0, -1.0, 2.5], "float32")
    given = None, 1, None, None, DEFAULTS
    choose = Sampling(*given, repetition_penalty=1.25, before=[1, 2])
    assert [choose(logits) for _ in range(4)] == [3, 1, 1, 1]  # 3 / 1.25 is 2.4, 2.5 / 1.25 is 2
    assert Sampling(*given, repetition_penalty=8.0, before=[0, 1, 3])(logits - 4) == 2  # -5, and -8
    assert [Sampling(*given, before=[1])(logits) for _ in range(2)] == [1, 1]
    assert Sampling(*given, repetition_penalty=1e-3, before=[3])(logits * np.float32(1e38)) == 3  # 2.5e41


def test_settings_of_a_folder_that_are_not_applied_are_said(
    changed: Any, caplog: pytest.LogCaptureFixture, cache: Path
) -> None:
    settings = {"num_beams": 4, "num_return_sequences": 2, "min_length": 0}
    byoc.TextGenerator(changed(lambda c: c["search"].update(settings)), threads=1, cache_dir=cache)
    for said in ("search.num_beams is 4", "search.num_return_sequences is 2"):
        assert f"{said}, which has no effect here" in caplog.text
    assert "min_length" not in caplog.text


def test_logits_that_are_no_numbers_are_an_error() -> None:
    with pytest.raises(byoc.InputError, match="largest logit is nan"):
        Sampling(None, None, None, None, DEFAULTS)(np.array([0.0, np.nan]))


# ---------------------------------------------------------------- pieces
@pytest.mark.parametrize("text", ["héllo 你好 🙂 the cat", "\ufffd\ufffd", " a", ""])
def test_pieces_have_whole_characters(text: str) -> None:
    encoded = tokenizer()
    ids = encoded.encode(text).ids
    pieces = Pieces(encoded, encoded.encode("ab").ids, [])
    parts = [pieces.add(i) for i in ids]
    assert "".join(parts) + pieces.rest() == text
    assert "\ufffd" in text or not any("\ufffd" in part for part in parts)


def test_pieces_of_any_bytes_are_the_decoded_text() -> None:
    encoded, rng = tokenizer(), random.Random(0)
    for _ in range(200):
        ids = [rng.randrange(TOKENS) for _ in range(rng.randrange(1, 30))]
        pieces = Pieces(encoded, encoded.encode("ab").ids, [])
        assert "".join(map(pieces.add, ids)) + pieces.rest() == encoded.decode(ids)


def test_a_decoder_that_drops_the_first_space_sees_what_is_before() -> None:
    words = Tokenizer(models.WordLevel({"▁a": 0, "▁b": 1, "<end>": 2}, unk_token="<end>"))
    words.add_special_tokens(["<end>"])
    words.decoder = decoders.Metaspace()
    pieces = Pieces(words, [0], [])
    assert [pieces.add(i) for i in (1, 2, 1, 0)] == [" b", "", " b", " a"]


@pytest.mark.parametrize(
    ("stops", "expected"),
    [
        (["cat"], "the "),
        (["t s", "sat"], "the ca"),
        (["he", "the"], ""),
        (["matt"], "the cat sat on the mat"),
        (["mat"], "the cat sat on the "),
        (["dog"], "the cat sat on the mat"),
    ],
    ids=str,
)
def test_stop_strings_are_not_in_the_text(stops: list[str], expected: str) -> None:
    encoded = tokenizer()
    pieces, parts = Pieces(encoded, [], stops), []
    for token in encoded.encode("the cat sat on the mat").ids:
        parts.append(pieces.add(token))
        if pieces.stopped:
            break
    assert "".join([*parts, pieces.rest()]) == expected


# ---------------------------------------------------------------- where the text ends
def test_the_text_ends_before_a_stop_string(generator: byoc.TextGenerator) -> None:
    text = generator.generate(PROMPT, 20)
    stop = text[5:8]
    stream = generator.stream(PROMPT, 20, stop=stop)
    assert "".join(stream) == text[: text.index(stop)] == generator.generate(PROMPT, 20, stop=["\0", stop])
    assert stream.tokens < 20


@pytest.mark.parametrize("several", [False, True], ids=["a number", "a list"])
def test_the_text_ends_before_a_token(
    generator: byoc.TextGenerator, changed: Callable[..., Path], cache: Path, several: bool
) -> None:
    encoded = tokenizer()
    ids = encoded.encode(PROMPT).ids
    tokens, _ = generated(runtime(KINDS["grows"]), KINDS["grows"], np.array([ids]), [len(ids)], 8)
    end = int(tokens[3][0])
    first = [int(t[0]) for t in tokens].index(end)
    path = changed(lambda c: c["model"].update(eos_token_id=[1, end] if several else end))
    stream = byoc.TextGenerator(path, threads=1, cache_dir=cache).stream(PROMPT)
    assert PROMPT + "".join(stream) == encoded.decode([*ids, *(int(t[0]) for t in tokens[:first])])
    assert stream.tokens == first


def test_limits(generator: byoc.TextGenerator, changed: Callable[..., Path], cache: Path) -> None:
    count = len(tokenizer().encode(PROMPT).ids)

    def written(of: byoc.TextGenerator, most: int | None) -> int:
        stream = of.stream(PROMPT, most)
        for _ in stream:
            pass
        return stream.tokens

    assert written(generator, 1) == 1
    assert written(generator, 1000) == written(generator, None) == CONTEXT - count
    shorter = byoc.TextGenerator(
        changed(lambda c: c["search"].update(max_length=count + 3)), threads=1, cache_dir=cache
    )
    assert (written(shorter, None), written(shorter, 5)) == (3, 5)


def test_a_template_for_chats(generator: byoc.TextGenerator, changed: Callable[..., Path], cache: Path) -> None:
    path = changed(lambda c: c["model"].update(bos_token_id=0))
    text = "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}{{ eos_token }}"
    (path / "chat_template.jinja").write_text(text)
    template = byoc.TextGenerator(path, threads=1, cache_dir=cache).chat_template
    assert template is not None and generator.chat_template is None
    assert template.render([{"role": "user", "content": "the cat"}]) == "<begin>[user] the cat<end>"


def test_closing_cancels(generator: byoc.TextGenerator) -> None:
    stream = generator.stream(PROMPT)
    assert next(stream)
    made = stream.tokens
    stream.close()
    assert list(stream) == [] and stream.tokens == made


# ---------------------------------------------------------------- errors
FOLDERS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no configuration": (lambda p: (p / "genai_config.json").unlink(), "no file .*genai_config.json"),
    "no tokenizer": (lambda p: (p / "tokenizer.json").unlink(), "no file .*tokenizer.json"),
    "no model": (lambda p: (p / "model.onnx").unlink(), "no file .*model.onnx"),
    "broken configuration": (lambda p: (p / "genai_config.json").write_text("{"), "genai_config.json: it is no JSON"),
    "a list": (lambda p: (p / "genai_config.json").write_text("[]"), "model.decoder.* is missing"),
    "bytes": (lambda p: (p / "genai_config.json").write_bytes(b"\xff"), "is not UTF-8"),
    "broken tokenizer": (lambda p: (p / "tokenizer.json").write_text("}"), "tokenizer.json: it is no JSON"),
    "no tokenizer's content": (lambda p: (p / "tokenizer.json").write_text("{}"), "tokenizer.json as a tokenizer"),
    "broken model": (lambda p: (p / "model.onnx").write_bytes(b"junk"), "model.onnx"),
}


@pytest.mark.parametrize(("damage", "message"), FOLDERS.values(), ids=FOLDERS)
def test_damaged_folders(changed: Callable[..., Path], damage: Callable[[Path], Any], message: str) -> None:
    path = changed(lambda c: None)
    damage(path)
    with pytest.raises(byoc.InputError, match=message) as raised:
        byoc.TextGenerator(path)
    assert isinstance(raised.value, MissingFileError) == message.startswith("no file")


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match=r"absent is no folder; expected one"):
        byoc.TextGenerator(tmp_path / "absent")
    with pytest.raises(TypeError, match="folder is a int; expected the path"):
        byoc.TextGenerator(3)  # type: ignore[arg-type]


CONFIGS: dict[str, tuple[Callable[[dict], Any], str]] = {
    "no file's name": (lambda c: c["model"]["decoder"].pop("filename"), "model.decoder.filename is missing"),
    "a name that is none": (lambda c: c["model"]["decoder"].update(filename=3), "filename is 3; expected a text"),
    "context of 0": (lambda c: c["model"].update(context_length=0), "context_length is 0; expected a positive integer"),
    "layers in words": (lambda c: c["model"]["decoder"].update(num_hidden_layers="2"), "num_hidden_layers is '2'"),
    "more layers than can be": (
        lambda c: c["model"]["decoder"].update(num_hidden_layers=10**9, inputs={"past_key_names": "k.%d"}),
        "needs 'past_key_values.0.key'",
    ),
    "a window without end": (
        lambda c: c["model"]["decoder"].update(sliding_window={"window_size": 4, "cache_slack": float("inf")}),
        "cache_slack is inf; expected a number",
    ),
    "an end in words": (lambda c: c["model"].update(eos_token_id=["x"]), "eos_token_id is .*; expected a token's"),
    "a negative temperature": (lambda c: c["search"].update(temperature=-1), "temperature is -1; expected a number"),
    "an unknown cache": (
        lambda c: c["model"]["decoder"]["inputs"].update(past_key_names="past.%d"),
        "needs 'past_key_values.0.key', which does not fit",
    ),
    "other logits": (lambda c: c["model"]["decoder"]["outputs"].update(logits="scores"), "has no 'scores'"),
    "one layer": (lambda c: c["model"]["decoder"].update(num_hidden_layers=1), "needs 'past_key_values.1.key'"),
    "a head size in words": (lambda c: c["model"]["decoder"].update(head_size="x"), "head_size is 'x'"),
}


@pytest.mark.parametrize(("change", "message"), CONFIGS.values(), ids=CONFIGS)
def test_configurations_that_cannot_be(
    changed: Callable[..., Path], cache: Path, change: Callable[[dict], Any], message: str
) -> None:
    with pytest.raises(byoc.InputError, match=message):
        byoc.TextGenerator(changed(change), threads=1, cache_dir=cache)


def test_a_tokenizer_that_does_not_fit(changed: Callable[..., Path], cache: Path) -> None:
    path = changed(lambda c: None)
    larger = tokenizer()
    larger.add_tokens([f"<{i}>" for i in range(TOKENS + 1 - larger.get_vocab_size())])
    larger.save(str(path / "tokenizer.json"))
    with pytest.raises(byoc.InputError, match=f"does not fit .* the token {TOKENS}, and .* {TOKENS} tokens"):
        byoc.TextGenerator(path, threads=1, cache_dir=cache)


def test_tokenizers_is_not_installed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(byoc.InputError, match=r"pip install 'tvm-byoc-dnnl\[text\]'"):
        byoc.TextGenerator(folder)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompt": 3}, "prompt is a int; expected a text"),
        ({"prompt": ["a", None]}, "prompt is a NoneType"),
        ({"prompt": "\ud800"}, "prompt is no text"),
        ({"prompt": "x " * CONTEXT}, f"prompt has .* together may have {CONTEXT} .context_length"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0; expected a number from 1 on"),
        ({"max_new_tokens": 2.0}, "max_new_tokens is 2.0"),
        ({"temperature": -0.1}, "temperature is -0.1; expected a number from 0 on"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": float("inf")}, "temperature is inf"),
        ({"temperature": "hot"}, "temperature is 'hot'"),
        ({"top_k": -1}, "top_k is -1; expected an integer from 0 on"),
        ({"top_k": 1.5}, "top_k is 1.5"),
        ({"top_p": 0}, "top_p is 0; expected a number above 0, up to 1"),
        ({"top_p": 1.1}, "top_p is 1.1; expected a number above 0, up to 1"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0; expected a number above 0"),
        ({"seed": -1}, "seed is -1; expected an integer from 0 on"),
        ({"seed": True}, "seed is True"),
        ({"stop": ""}, "stop is ''; expected a text that is not empty"),
        ({"stop": [3]}, r"stop is \[3\]"),
    ],
    ids=str,
)
def test_wrong_arguments(generator: byoc.TextGenerator, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(byoc.InputError, match=message):
        generator.generate(**{"prompt": PROMPT, **arguments})


# ---------------------------------------------------------------- the command
def test_the_command(
    generator: byoc.TextGenerator, folder: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def command(*arguments: object) -> tuple[object, str, str]:
        with pytest.raises(SystemExit) as stop:
            cli.main(["generate", *map(str, arguments)])
        return stop.value.code, *capsys.readouterr()

    options = ["--max-new-tokens", 9, "--temperature", 0.7, "--seed", 4, "--threads", 1, "--cache-dir", cache]
    status, out, err = command(folder, PROMPT, *options)
    assert (status, out) == (0, generator.generate(PROMPT, 9, temperature=0.7, seed=4) + "\n")
    count = len(tokenizer().encode(PROMPT).ids)
    assert err.startswith(f"prompt: {count} tokens, ") and "; text: 9 tokens, " in err and err.count("\n") == 1
    status, out, err = command(folder, PROMPT, "--top-p", 2, "--threads", 1, "--cache-dir", cache)
    assert (status, out) == (2, "") and "top_p is 2.0; expected" in err
    status, out, err = command(folder / "absent", PROMPT)
    assert (status, out) == (2, "") and "does not exist" in err
