"""GGUF files: logits by definition, weights as they are stored, and one error for each fault."""

from __future__ import annotations

import itertools
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize

import tvm_byoc_dnnl as byoc
from tvm_byoc_dnnl import cli
from tvm_byoc_dnnl.core.errors import MissingFileError
from tvm_byoc_dnnl.frontends.gguf import stored
from tvm_byoc_dnnl.text import folder
from tvm_byoc_dnnl.text.folder import from_gguf

from .gguf_model import TYPES, GgufModel, random_blocks
from .test_text import tokenizer as pieces


# ---------------------------------------------------------------- blocks
@pytest.mark.parametrize("kind", TYPES)
def test_blocks_are_the_weights(kind: str) -> None:
    data = random_blocks(np.random.default_rng(0), kind, 5, 512)
    found = stored(kind, data, 512)
    assert found is not None
    numbers = found.numbers
    if found.bits == 4:
        numbers = np.stack([numbers & 15, numbers >> 4], -1).reshape(5, 512)
    weights = (numbers - 2.0 ** (found.bits - 1)) * np.repeat(found.scales, found.block, 1)
    if found.shifts is not None:
        weights += np.repeat(found.shifts, found.block, 1)
    want = dequantize(data, GGMLQuantizationType[kind])
    np.testing.assert_allclose(weights, want, rtol=1e-6, atol=1e-6 * np.abs(want).max())


def test_other_blocks_are_not_taken_apart() -> None:
    assert stored("Q3_K", random_blocks(np.random.default_rng(0), "Q3_K", 1, 256), 256) is None


# ---------------------------------------------------------------- logits
WIDE = {"hidden": 256, "wide": 512, "layers": 1}
MODELS = {
    "llama, tied": GgufModel(kinds={"weight": "Q8_0"}, tied=True, factors=True, seed=1),
    "qwen2": GgufModel(
        "qwen2",
        {"_up.weight": "F16", "_v.weight": "F32", "_q.weight": "Q5_0", "embd.weight": "Q4_1", "weight": "Q4_0"},
        layers=1,
        seed=2,
    ),
    "qwen3": GgufModel(
        "qwen3", {"_v.weight": "Q6_K", "output.weight": "Q6_K", "weight": "Q4_K"}, **WIDE, width=128, seed=3
    ),
    "llama, part of a head turned": GgufModel(
        kinds={"_down.weight": "Q3_K", "_up.weight": "Q5_1", "weight": "Q5_K"},
        **WIDE,
        width=64,
        turns=32,
        tied=True,
        scaling=4.0,
        seed=4,
    ),
}


def step(runner: byoc.Runner, of: GgufModel, ids: np.ndarray, pasts: dict[str, np.ndarray], total: int) -> Any:
    feeds = {"input_ids": ids, "attention_mask": np.ones((1, total), "int64"), **pasts}
    results = runner.named(feeds)
    return results.pop("logits"), {name.replace("present", "past_key_values"): a for name, a in results.items()}


@pytest.mark.native
@pytest.mark.parametrize("of", MODELS.values(), ids=MODELS)
def test_logits_are_those_of_the_definition(of: GgufModel, tmp_path: Path) -> None:
    weights = of.write(tmp_path / "model.gguf")
    runner = byoc.Runner(byoc.compile(tmp_path / "model.gguf"))
    ids = np.random.default_rng(9).integers(0, of.words, 11)
    want = of.logits(weights, ids)
    empty = np.zeros((1, of.own, 0, of.width), "float32")
    pasts = {f"past_key_values.{i}.{n}": empty for i in range(of.layers) for n in ("key", "value")}
    logits, pasts = step(runner, of, ids[None, :7], pasts, 7)
    scale = np.abs(want).max()
    np.testing.assert_allclose(logits[0] / scale, want[:7] / scale, atol=2e-5)
    for row in range(7, 11):
        logits, pasts = step(runner, of, ids[None, row : row + 1], pasts, row + 1)
        np.testing.assert_allclose(logits[0, 0] / scale, want[row] / scale, atol=2e-5)


# ---------------------------------------------------------------- text
TEXT = "In 1234 days THEY'LL sit on  the mat,\n\n naïve  as ever.  "


def with_pairs(**values: Any) -> Callable[[GGUFWriter], None]:
    """The tokenizer of `pieces` in a file."""
    model = json.loads(pieces().to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)

    def add(writer: GGUFWriter) -> None:
        writer.add_tokenizer_model(values.get("model", "gpt2"))
        writer.add_tokenizer_pre(values.get("pre", "gpt-2"))
        writer.add_token_list(tokens)
        writer.add_token_types([3, 3] + [1] * (len(tokens) - 2))
        writer.add_token_merges(values.get("merges", [" ".join(pair) for pair in model["merges"]]))
        writer.add_bos_token_id(0)
        writer.add_eos_token_id(1)

    return add


def read(path: Path, tokenizer: Callable[[GGUFWriter], None]) -> Any:
    """The tokenizer of a file."""
    GgufModel(layers=1).write(path / "model.gguf", tokenizer)
    return from_gguf(path / "model.gguf").tokenizer


def test_the_tokenizer_of_pairs(tmp_path: Path) -> None:
    ours, theirs = read(tmp_path, with_pairs()), pieces()
    assert ours.encode(TEXT).ids == theirs.encode(TEXT).ids
    assert ours.decode(ours.encode(TEXT).ids) == TEXT
    assert ours.encode("a<end>").ids[-1] == 1


@pytest.mark.parametrize(
    ("pre", "words"),
    [
        ("gpt-2", "In| 1234| days| THEY|'|LL| sit| on| | the| mat|,|\n\n|"),
        ("smollm", "In| |1|2|3|4| days| THEY|'|LL| sit| on| | the| mat|,|\n\n|"),
        ("qwen2", "In| |1|2|3|4| days| THEY|'LL| sit| on| | the| mat|,\n\n|"),
        ("llama-bpe", "In| |123|4| days| THEY|'LL| sit| on| | the| mat|,\n\n|"),
    ],
)
def test_how_texts_are_cut(tmp_path: Path, pre: str, words: str) -> None:
    tokenizer = read(tmp_path, with_pairs(pre=pre))
    cut = [TEXT[a:b] for _, (a, b) in tokenizer.pre_tokenizer.pre_tokenize_str(TEXT)]
    assert "|".join(cut).startswith(words) and "".join(cut) == TEXT
    begins = tokenizer.encode("a").ids[0] == 0
    assert begins == (pre == "llama-bpe")


PIECES = [
    "<unk>",
    "<s>",
    "</s>",
    *(f"<0x{i:02X}>" for i in range(256)),
    *"▁abcdeht",
    "th",
    "▁th",
    "the",
    "▁the",
    "at",
    "hat",
]


def with_scores(writer: GGUFWriter) -> None:
    """A tokenizer of pieces with scores."""
    writer.add_tokenizer_model("llama")
    writer.add_token_list(PIECES)
    writer.add_token_types([2, 3, 3] + [6] * 256 + [1] * (len(PIECES) - 259))
    writer.add_token_scores([0.0] * 259 + [-float(i * 7 % 11) for i in range(len(PIECES) - 259)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def joined(text: str) -> list[str]:
    """By definition: the neighbours whose piece has the greatest score are joined, the first of equal ones."""
    scores = {piece: -float(i * 7 % 11) for i, piece in enumerate(PIECES[259:])}
    parts = list("▁" + text.replace(" ", "▁"))
    while pairs := [(scores[a + b], -i) for i, (a, b) in enumerate(itertools.pairwise(parts)) if a + b in scores]:
        at = -max(pairs)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return [q for p in parts for q in ([p] if p in scores else [f"<0x{byte:02X}>" for byte in p.encode()])]


def test_the_tokenizer_of_pieces_with_scores(tmp_path: Path) -> None:
    tokenizer, rng = read(tmp_path, with_scores), random.Random(0)
    for text in ["the hat", "é that", *("".join(rng.choices("abcdeht é", k=12)) for _ in range(50))]:
        encoded = tokenizer.encode(text)
        assert encoded.tokens == ["<s>", *joined(text)]
        assert tokenizer.decode(encoded.ids) == text


@pytest.mark.native
def test_text_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    of = GgufModel("qwen2", {"weight": "Q8_0"}, words=300, seed=8)
    weights = of.write(tmp_path / "model.gguf", with_pairs())
    prompt = "the cat sat"
    ids = pieces().encode(prompt).ids
    start = len(ids)
    for _ in range(6):
        ids.append(int(of.logits(weights, np.array(ids))[-1].argmax()))
    assert 1 not in ids[start:]
    generator = byoc.TextGenerator(tmp_path / "model.gguf", threads=1, cache_dir=tmp_path / "compiled")
    text = generator.generate(prompt, 6)
    assert prompt + text == pieces().decode(ids)
    monkeypatch.setattr(folder, "File", lambda _: pytest.fail("the file's fields are read again"))
    arguments = ["generate", str(tmp_path / "model.gguf"), prompt, "--max-new-tokens", "6", "--threads", "1"]
    with pytest.raises(SystemExit):
        cli.main([*arguments, "--cache-dir", str(tmp_path / "compiled")])
    assert capsys.readouterr().out == f"{text}\n"
    assert sorted(p.suffix for p in (tmp_path / "compiled").iterdir()) == [".so", ".text"]
    monkeypatch.undo()
    (kept,) = (tmp_path / "compiled").glob("*.text")
    kept.write_bytes(kept.read_bytes().replace(b"[", b"{", 1))
    damaged = byoc.TextGenerator(tmp_path / "model.gguf", threads=1, cache_dir=tmp_path / "compiled")
    assert damaged.generate(prompt, 6) == text
    with (tmp_path / "model.gguf").open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(byoc.InputError, match="cannot read"):
        byoc.TextGenerator(tmp_path / "model.gguf", threads=1, cache_dir=tmp_path / "compiled")


# ---------------------------------------------------------------- errors
Damage = Callable[[Path], Any]
FILES: dict[str, tuple[Damage, type[Exception], str]] = {
    "another architecture": (lambda p: GgufModel("gemma3").write(p), byoc.UnsupportedError, "architecture 'gemma3'"),
    "experts": (
        lambda p: GgufModel(values={"llama.expert_count": 8}).write(p),
        byoc.UnsupportedError,
        "mixture of experts",
    ),
    "a part of a model": (
        lambda p: GgufModel(values={"split.count": 3}).write(p),
        byoc.UnsupportedError,
        "is one of 3 parts; join them",
    ),
    "another scaling": (
        lambda p: GgufModel(values={"llama.rope.scaling.type": "yarn"}).write(p),
        byoc.UnsupportedError,
        "scaling.type is 'yarn'; expected none or linear",
    ),
    "values of another length": (
        lambda p: GgufModel(values={"llama.attention.value_length": 8}).write(p),
        byoc.UnsupportedError,
        "different lengths",
    ),
    "a tensor too many": (
        lambda p: GgufModel("qwen3").write(p) and patch(p, b"blk.1.attn_k_norm", b"blk.1.attn_x_norm"),
        byoc.UnsupportedError,
        "blk.1.attn_x_norm.weight, which is not computed",
    ),
    "no tensor": (
        lambda p: GgufModel(left_out=("blk.1.ffn_up.weight",)).write(p),
        byoc.InputError,
        "no tensor blk.1.ffn_up.weight",
    ),
    "no table": (
        lambda p: GgufModel(left_out=("token_embd.weight",)).write(p),
        byoc.InputError,
        "no tensor token_embd",
    ),
    "no value": (
        lambda p: GgufModel().write(p) and patch(p, b"llama.block_count", b"llama.black_count"),
        byoc.InputError,
        "llama.block_count is missing; expected a positive integer",
    ),
    "another type": (
        lambda p: GgufModel(values={"llama.rope.dimension_count": "x"}).write(p),
        byoc.InputError,
        "dimension_count is 'x'; expected a positive integer",
    ),
    "another shape": (
        lambda p: GgufModel(values={"llama.rope.dimension_count": 8}, factors=True).write(p),
        byoc.InputError,
        r"rope_freqs.weight has the shape \[8\]; expected \[4\]",
    ),
    "cut off": (lambda p: GgufModel().write(p) and p.write_bytes(p.read_bytes()[:5000]), byoc.InputError, "as a GGUF"),
    "empty": (lambda p: p.write_bytes(b""), byoc.InputError, "as a GGUF file"),
    "another file": (lambda p: p.write_bytes(b"junk" * 99), byoc.InputError, "GGUF magic invalid"),
    "a folder": (Path.mkdir, byoc.InputError, "model.gguf"),
    "nothing": (lambda p: None, MissingFileError, "no file"),
}


def patch(path: Path, old: bytes, new: bytes) -> None:
    """Change bytes of a file."""
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new))


@pytest.mark.parametrize(("damage", "kind", "message"), FILES.values(), ids=FILES)
def test_files_that_are_refused(tmp_path: Path, damage: Damage, kind: type[Exception], message: str) -> None:
    damage(tmp_path / "model.gguf")
    with pytest.raises(kind, match=message):
        byoc.compile(tmp_path / "model.gguf")


TOKENIZERS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "another kind": ({"model": "bert"}, byoc.UnsupportedError, "the kind 'bert'; expected one of gpt2, llama"),
    "other words": ({"pre": "tekken"}, byoc.UnsupportedError, "cuts texts as 'tekken'"),
    "unknown pairs": ({"merges": ["ж ж"]}, byoc.InputError, "cannot read the tokenizer"),
    "no pairs": ({"merges": ["a"]}, byoc.InputError, "cannot read the tokenizer"),
    "no scores": ({"model": "llama"}, byoc.InputError, "scores is missing"),
}


@pytest.mark.parametrize(("values", "kind", "message"), TOKENIZERS.values(), ids=TOKENIZERS)
def test_tokenizers_that_are_refused(tmp_path: Path, values: Any, kind: type[Exception], message: str) -> None:
    GgufModel(layers=1).write(tmp_path / "model.gguf", with_pairs(**values))
    with pytest.raises(kind, match=message):
        byoc.TextGenerator(tmp_path / "model.gguf")


@pytest.mark.native
def test_a_tokenizer_that_does_not_fit(tmp_path: Path) -> None:
    GgufModel(layers=1).write(tmp_path / "model.gguf", with_pairs())
    with pytest.raises(byoc.InputError, match="the tokenizer does not fit"):
        byoc.TextGenerator(tmp_path / "model.gguf", cache_dir=tmp_path)


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    GgufModel(layers=1).write(tmp_path / "model.gguf")
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(byoc.InputError, match=r"pip install 'tvm-byoc-dnnl\[gguf\]'"):
        byoc.compile(tmp_path / "model.gguf")


# ---------------------------------------------------------------- the other ways in
def test_the_commands_take_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    GgufModel(layers=1).write(tmp_path / "model.gguf")
    with pytest.raises(SystemExit):
        cli.main(["inputs", str(tmp_path / "model.gguf")])
    shown = capsys.readouterr().out
    assert "input_ids" in shown and "past_key_values.0.value" in shown and "sequence_length" in shown
