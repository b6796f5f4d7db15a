"""Several texts at once: each is as if it were alone, and they share the steps of the model."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest

import tvm_byoc_dnnl as byoc
from tvm_byoc_dnnl.text import stream as streams
from tvm_byoc_dnnl.text.caches import Conversation
from tvm_byoc_dnnl.text.conversation import Decoder

from .test_text import CONTEXT, KINDS, TOKENS, write

pytestmark = pytest.mark.native

PROMPTS = ["The cat sat on the mat, naïve as ever.", "a", "", "the hat and the bat", "rat"]
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module", params=KINDS.values(), ids=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("together") / "model", request.param)


@pytest.fixture(scope="module")
def generator(folder: Path) -> byoc.TextGenerator:
    return byoc.TextGenerator(folder, threads=1, conversations=3)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of texts in each call of a model."""
    counts: list[int] = []
    read = Decoder.read

    def counted(self: Decoder, conversations: list) -> np.ndarray:
        counts.append(len(conversations))
        return read(self, conversations)

    monkeypatch.setattr(Decoder, "read", counted)
    return counts


SETTINGS = {"greedy": {}, "drawn": {"temperature": 0.9, "seed": 5}}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_each_text_is_as_if_alone(generator: byoc.TextGenerator, settings: dict, steps: list[int]) -> None:
    assert generator._turns._decoder.joins
    steps.clear()
    alone = [generator.generate(p, 3 + 4 * i, **settings) for i, p in enumerate(PROMPTS)]
    assert set(steps) == {1}
    steps.clear()
    together = generator.generate(PROMPTS, 19, **settings)
    assert [text.startswith(each) for text, each in zip(together, alone, strict=True)] == [True] * 5
    assert max(steps) == 3  # as many as the generator may join
    assert len(steps) < 5 * 19 * 0.6
    steps.clear()
    with ThreadPoolExecutor(5) as pool:
        counts = [3 + 4 * i for i in range(5)]
        assert list(pool.map(lambda p, n: generator.generate(p, n, **settings), PROMPTS, counts)) == alone


def test_texts_come_and_go_between_steps(generator: byoc.TextGenerator) -> None:
    alone = [generator.generate(p, 30) for p in PROMPTS]
    running = {0: generator.stream(PROMPTS[0], 30)}
    texts = [""] * len(PROMPTS)
    for turn in range(12):
        if turn in (3, 5, 8):
            running[len(running)] = generator.stream(PROMPTS[len(running)], 30)
        if turn == 7:
            running[1].close()
        for i, stream in running.items():
            texts[i] += next(stream, "")
    assert all(whole.startswith(text) for whole, text in zip(alone, texts, strict=True))
    assert [len(text) > 2 for text in texts] == [True, True, True, True, False]


def test_a_text_that_nobody_reads_is_not_far_ahead(generator: byoc.TextGenerator, steps: list[int]) -> None:
    assert generator._turns._decoder.joins
    steps.clear()
    other = generator.stream(PROMPTS[1], 40)
    pieces = [next(other)]
    text = "".join(generator.stream(PROMPTS[3], 30))
    assert len(text) > 5
    assert 10 < sum(count - 1 for count in steps) <= streams._AHEAD
    assert pieces + list(other) == list(generator.stream(PROMPTS[1], 40))


def test_why_a_text_is_over(generator: byoc.TextGenerator) -> None:
    whole = generator.generate(PROMPTS[0], 12)
    one, two, three, four = (generator.stream(PROMPTS[0], 12, stop=s) for s in ([], whole[4:7], [], []))
    assert one.finished is None and "".join(one) == whole and one.finished == "length"
    assert "".join(two) == whole[: whole.index(whole[4:7])] and two.finished == "stop"
    next(three)
    three.close()
    assert three.finished == "closed" and list(three) == []
    next(four)
    del four
    gc.collect()
    assert not generator._turns._open()


def test_an_error_ends_one_text(generator: byoc.TextGenerator, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = generator.generate(PROMPTS[0], 12)
    good, bad = generator.stream(PROMPTS[0], 12), generator.stream(PROMPTS[1], 12)
    pieces = [next(good), next(good)]
    next(bad)

    def fails(logits: np.ndarray) -> int:
        raise byoc.InputError("no token")

    monkeypatch.setattr(bad, "_choose", fails)
    assert "".join([*pieces, *good]) == alone
    with pytest.raises(byoc.InputError, match="no token"):
        list(bad)
    assert bad.finished == "closed" and list(bad) == []


def test_texts_join_and_leave_at_any_step(generator: byoc.TextGenerator) -> None:
    decoder, tokens = generator._turns._decoder, np.random.default_rng(3)
    prompts = {name: tokens.integers(2, TOKENS, 9 - i).tolist() for i, name in enumerate("abcde")}
    alone, shared = ({name: Conversation(prompt) for name, prompt in prompts.items()} for _ in range(2))
    for names in ("abc", "abc", "ab", "abc", "abd", "abd", "de", "e", "ade"):
        for name in names:
            token = int(tokens.integers(2, TOKENS))
            for of in (alone, shared):
                if not of[name].length:
                    decoder.read([of[name]])
                of[name].unread.append(token)
        got = decoder.read([shared[name] for name in names])
        (held,) = (g for g in decoder.caches._groups if {*g.members} == {shared[name] for name in names})
        caches = dict(held.caches)
        for name, row in zip(names, got, strict=True):
            (want,) = decoder.read([alone[name]])  # those of the batch stay where they are
            np.testing.assert_allclose(row, want, rtol=0, atol=1e-4 * np.abs(want).max())
        assert all(held.caches[past] is cache for past, cache in caches.items())
    decoder.caches.clear()


#: who is read, who is over before, and how many of those that were read before get another place
TURNS = [("a", "", 0), ("b", "", 1), ("ab", "", 0), ("c", "", 2), ("abc", "", 0), ("d", "", 0), ("abcd", "", 0)]
TURNS += [("bcd", "a", 0), ("e", "", 0), ("bcde", "", 0), ("ecb", "d", 0), ("f", "", 0), ("ebcf", "", 0)]
TURNS += [("ebf", "", 2), ("ebcf", "", 0)]


def test_caches_stay_where_they_are_when_texts_join_and_leave(generator: byoc.TextGenerator) -> None:
    decoder, tokens = generator._turns._decoder, np.random.default_rng(4)
    caches, texts = decoder.caches, {}
    caches.clear()
    for names, over, moved in TURNS:
        for name in over:
            texts[name].is_over = True
        old = next(iter(caches._memory.values()), None)
        before = {name: text.slot for name, text in texts.items()}
        texts |= {name: Conversation(tokens.integers(2, TOKENS, 5)) for name in names if name not in texts}
        for name in names:
            texts[name].unread = texts[name].unread or [3]
        decoder.read([texts[name] for name in names])
        is_new = next(iter(caches._memory.values())) is not old
        others = before.keys() - {name for name in texts if texts[name].is_over}
        assert sum(is_new or before[name] != texts[name].slot for name in others) == moved, names
        assert len({texts[name].slot for name in {*others, *names}}) == len({*others, *names})
        (group,) = (g for g in caches._groups if {*g.members} == {texts[name] for name in names})
        for past in decoder._runner.grown:
            assert np.may_share_memory(np.from_dlpack(group.caches[past]), caches._memory[past])
    caches.clear()


# ---------------------------------------------------------------- models of other kinds
@pytest.fixture
def in_examples() -> Iterator[None]:
    sys.path.insert(0, str(EXAMPLES))
    yield
    sys.path.remove(str(EXAMPLES))


def test_a_model_that_appends_to_its_caches_reads_texts_in_turn(
    tmp_path: Path, in_examples: None, steps: list[int]
) -> None:
    from open_models import decoder

    path = write(tmp_path / "model", KINDS["grows"])
    onnx.save(decoder(2, 64, 4, 2, TOKENS, CONTEXT), path / "model.onnx")
    config = json.loads((path / "genai_config.json").read_text())
    for kind, when in (("inputs", "past"), ("outputs", "present")):
        names = {f"{when}_{part}_names": f"{when}_%d_{part}" for part in ("key", "value")}
        config["model"]["decoder"][kind] |= names
    config["model"]["decoder"]["inputs"]["position_ids"] = "position_ids"
    (path / "genai_config.json").write_text(json.dumps(config))
    generator = byoc.TextGenerator(path, threads=1)
    alone = [generator.generate(p, 6) for p in PROMPTS]
    assert not generator._turns._decoder.joins
    steps.clear()
    assert generator.generate(PROMPTS, 6) == alone
    assert set(steps) == {1}


def test_the_number_of_texts_is_checked(folder: Path) -> None:
    with pytest.raises(byoc.InputError, match="conversations"):
        byoc.TextGenerator(folder, conversations=0)
