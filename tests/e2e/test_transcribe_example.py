"""`examples/transcribe.py` gives the tokens of ONNX Runtime, for each form of a model of speech."""

from __future__ import annotations

import importlib.util
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from examples.open_models import speech_decoder, speech_encoder
from tests.tvm_version import open_cache
from tests.unit.merged_decoders import WIDTH, merged_decoder
from tvm_byoc_dnnl import Runner, compile

PATH = Path(__file__).parents[2] / "examples" / "transcribe.py"
SMALL = {"layers": 1, "width": 32, "heads": 2, "frames": 40}


@pytest.fixture(scope="module")
def example() -> Any:
    spec = importlib.util.spec_from_file_location("transcribe_example", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _session(model: onnx.ModelProto) -> Callable[[Any], Any]:
    import onnxruntime

    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda feeds: dict(zip(names, session.run(None, feeds), strict=True))


MODELS = {
    "keys and values of the encoder": lambda: (speech_encoder(**SMALL), speech_decoder(**SMALL)),
    "merged": lambda: (speech_encoder(1, WIDTH, 2, 40, is_cross=False), merged_decoder("whisper")),
}


@open_cache
@pytest.mark.native
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_the_tokens_are_those_of_onnx_runtime(example: Any, make: Callable[[], Any]) -> None:
    models = make()
    runners = [Runner(compile(model)) for model in models]
    features = np.random.default_rng(0).standard_normal((1, 80, 40)).astype("float32")

    def tokens(*runs: Callable[[Any], Any]) -> list[int]:
        steps = [example.Step(runners[1].inputs, runs[1])]
        return example.transcribe(runs[0]({"audio_features": features}), steps, [1, 2, 3], 8, -1)

    ours = tokens(*(runner.named for runner in runners))
    assert ours == tokens(*map(_session, models))
    assert len(ours) == 8


def test_text_ends_at_its_token_and_two_decoders_take_turns(example: Any) -> None:
    class Info:
        name, dtype, shape = "input_ids", "int32", (1, "length")

    seen = []

    def step(which: str, best: list[int]) -> Callable[[Any], Any]:
        def run(feeds: Any) -> Any:
            seen.append((which, feeds["input_ids"].tolist(), str(feeds["input_ids"].dtype)))
            return {"logits": np.eye(9, dtype="float32")[[[best.pop(0)]]]}

        return run

    steps = [example.Step([Info], step("first", [4])), example.Step([Info], step("later", [6, 0, 5]))]
    assert example.transcribe({}, steps, [1, 2], 9, 0) == [4, 6]
    assert seen == [("first", [[1, 2]], "int32"), ("later", [[4]], "int32"), ("later", [[6]], "int32")]


def test_what_is_heard(example: Any) -> None:
    np.testing.assert_allclose(example._bands()[0, :3], [0, 0.02486259, 0], atol=1e-8)  # as Whisper has it
    time = np.arange(16000) / 16000
    heard = example.log_mel(np.sin(2 * np.pi * 1000 * time))
    assert heard.shape == (80, 3000) and heard.dtype == "float32"
    middle = example._bands()[heard[:, 50].argmax()].argmax() * 40
    assert abs(middle - 1000) <= 40
    assert heard[:, 200:].max() == heard.min()  # silence


def test_files(example: Any, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"expected encoder.onnx and decoder.onnx or encoder_model.onnx"):
        example.models_of(tmp_path)
    for name in ("encoder_model.onnx", "decoder_model.onnx", "decoder_with_past_model.onnx"):
        (tmp_path / name).touch()
    assert [p.name for p in example.models_of(tmp_path)[1]] == ["decoder_model.onnx", "decoder_with_past_model.onnx"]
    for rate in (16000, 8000):
        with wave.open(str(tmp_path / "sound.wav"), "wb") as file:
            file.setparams((1, 2, rate, 0, "NONE", ""))
            file.writeframes(np.array([0, 16384, -32768], "<i2").tobytes())
        if rate == 16000:
            np.testing.assert_array_equal(example.read_sound(tmp_path / "sound.wav"), [0, 0.5, -1])
    with pytest.raises(SystemExit, match="expected 16000 samples a second"):
        example.read_sound(tmp_path / "sound.wav")
