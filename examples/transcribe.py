"""Write down speech with Whisper, beside ONNX Runtime.

    python examples/transcribe.py                      a small model with random weights from a fixed seed, and noise
    python examples/transcribe.py FOLDER sound.wav     yours: 16,000 samples a second, one channel of 16 bits

FOLDER is as onnxruntime-genai's model builder writes it (``encoder.onnx``, ``decoder.onnx``), or as optimum does: one
merged decoder, or one for the first step and one with a cache. One compiled decoder serves all lengths of the cache.
"""

from __future__ import annotations

import argparse
import time
import wave
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx

import tvm_byoc_dnnl as byoc

Arrays = dict[str, np.ndarray]
RATE, SECONDS, WINDOW, HOP, MELS = 16000, 30, 400, 160, 80
#: the encoder's file, and those of the decoder
FILES = (
    ("encoder.onnx", ("decoder.onnx",)),
    ("encoder_model.onnx", ("decoder_model_merged.onnx",)),
    ("encoder_model.onnx", ("decoder_model.onnx", "decoder_with_past_model.onnx")),
)
PROMPT, END = ("<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>"), "<|endoftext|>"


class Step(NamedTuple):
    """A decoder: its inputs, and what runs it, from arrays by name to arrays by name."""

    inputs: Sequence[Any]
    run: Callable[[Arrays], Arrays]


def log_mel(sound: np.ndarray) -> np.ndarray:
    """What Whisper hears of a sound of at most 30 seconds: the loudness of 80 bands, 100 times a second, (80, 3000)."""
    padded = np.zeros(RATE * SECONDS)
    padded[: len(sound)] = sound[: len(padded)]
    padded = np.pad(padded, WINDOW // 2, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[:-1:HOP]
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)
    power = np.abs(np.fft.rfft(frames * hann)) ** 2
    loud = np.log10(np.maximum(_bands() @ power.T, 1e-10))
    return ((np.maximum(loud, loud.max() - 8) + 4) / 4).astype("float32")


def _bands() -> np.ndarray:
    """The share that each band takes of each frequency, (80, 201): triangles, of one area, on Slaney's mel scale."""

    def hertz(mel: np.ndarray) -> np.ndarray:
        return np.where(mel < 15, mel * 200 / 3, 1000 * np.exp((mel - 15) * np.log(6.4) / 27))

    edges = hertz(np.linspace(0, 15 + 27 * np.log(RATE / 2 / 1000) / np.log(6.4), MELS + 2))
    at = np.linspace(0, RATE / 2, WINDOW // 2 + 1)
    up = (at - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    down = (edges[2:, None] - at) / (edges[2:] - edges[1:-1])[:, None]
    return np.maximum(0, np.minimum(up, down)) * (2 / (edges[2:] - edges[:-2]))[:, None]


def transcribe(encoded: Arrays, steps: Sequence[Step], prompt: Sequence[int], count: int, end: int) -> list[int]:
    """The most likely tokens behind a prompt.

    Parameters
    ----------
    encoded : dict
        The outputs of the encoder: what the decoder listens to, and perhaps the keys and values made of it.
    steps : sequence of Step
        The decoder, or one for the first step and one for the others.
    prompt : sequence of int
        The first tokens: language and task.
    count : int
        The most tokens to write.
    end : int
        The token behind which there is no text.
    """
    state: Arrays = {}
    for name, value in encoded.items():
        state[_past(name) if name.startswith("present") else "encoder_hidden_states"] = value
    ids, tokens = list(prompt), []
    for n in range(count):
        inputs, run = steps[min(n, len(steps) - 1)]
        is_merged = any(i.name == "use_cache_branch" for i in inputs)
        state["use_cache_branch"] = np.array([n > 0])
        feeds = {}
        for i in inputs:
            if i.name == "input_ids":
                feeds[i.name] = np.array([ids], i.dtype)
            elif i.name in state:
                feeds[i.name] = state[i.name]
            else:  # a cache before the first token
                rows = 1 if is_merged else 0  # which the branch without a cache does not read
                feeds[i.name] = np.zeros([1, *(d if isinstance(d, int) else rows for d in i.shape[1:])], i.dtype)
        results = run(feeds)
        # a merged decoder gives empty keys and values of the encoder in later steps: the first ones stay
        state |= {_past(name): x for name, x in results.items() if name.startswith("present") and x.size}
        ids = [int(results["logits"][0, -1].argmax())]
        if ids[0] == end:
            break
        tokens += ids
    return tokens


def _past(present: str) -> str:
    """The input that an output of a step is to the next one."""
    behind = present.removeprefix("present")
    return ("past_key_values" if behind.startswith(".") else "past") + behind


def read_sound(path: Path) -> np.ndarray:
    """The samples of a .wav file, from -1 to 1."""
    with wave.open(str(path)) as file:
        if (file.getframerate(), file.getnchannels(), file.getsampwidth()) != (RATE, 1, 2):
            raise SystemExit(f"{path}: expected {RATE} samples a second, one channel of 16 bits")
        return np.frombuffer(file.readframes(RATE * SECONDS), "<i2") / 32768


def models_of(folder: Path) -> tuple[Path, list[Path]]:
    """The files of the encoder and of the decoder."""
    for encoder, decoders in FILES:
        if all((folder / name).is_file() for name in (encoder, *decoders)):
            return folder / encoder, [folder / name for name in decoders]
    raise SystemExit(
        f"{folder} has no model of speech; expected {' or '.join(' and '.join((a, *b)) for a, b in FILES)}"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Transcribe with both, compare, and print tokens and times."""
    from open_models import speech_decoder, speech_encoder  # beside this file

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, help="with a model and its tokenizer.json")
    parser.add_argument("sound", nargs="?", type=Path, help="a .wav file")
    parser.add_argument("--tokens", type=int, default=100, help="the most to write")
    options = parser.parse_args(arguments)
    sound = np.random.default_rng(0).standard_normal(5 * RATE) / 10
    prompt, end, tokenizer, encoder, decoders = [1, 2, 3], 0, None, speech_encoder(), [speech_decoder()]
    if options.folder:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(options.folder / "tokenizer.json"))
        prompt, end = [tokenizer.token_to_id(token) for token in PROMPT], tokenizer.token_to_id(END)
        encoder, decoders = models_of(options.folder)
    if options.sound:
        sound = read_sound(options.sound)

    runners = [byoc.Runner(byoc.compile(model)) for model in (encoder, *decoders)]
    listened = [runner.inputs for runner in runners]
    ours = _timed("tvm_byoc_dnnl", listened, [runner.named for runner in runners], sound, prompt, options.tokens, end)
    print(tokenizer.decode(ours) if tokenizer else ours)
    try:
        import onnxruntime
    except ImportError:
        print("onnxruntime is not installed: nothing to compare with")
        return

    def session(model: onnx.ModelProto | Path) -> Callable[[Arrays], Arrays]:
        data = str(model) if isinstance(model, Path) else model.SerializeToString()
        made = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
        names = [output.name for output in made.get_outputs()]
        return lambda feeds: dict(zip(names, made.run(None, feeds), strict=True))

    runs = [session(model) for model in (encoder, *decoders)]
    theirs = _timed("ONNX Runtime", listened, runs, sound, prompt, options.tokens, end)
    if ours != theirs:
        raise SystemExit(f"other tokens than ONNX Runtime: {theirs}")
    print("the tokens are equal")


def _timed(
    engine: str, inputs: Any, runs: Any, sound: np.ndarray, prompt: list[int], count: int, end: int
) -> list[int]:
    """The tokens, with a line about their time; the first calls of an engine prepare it, and are not counted."""
    steps = [Step(i, run) for i, run in zip(inputs[1:], runs[1:], strict=True)]
    for most in (2, count):
        start = time.perf_counter()
        encoded = runs[0]({inputs[0][0].name: log_mel(sound)[None]})
        middle = time.perf_counter()
        tokens = transcribe(encoded, steps, prompt, most, end)
    heard, written = middle - start, time.perf_counter() - middle
    speed = len(sound) / RATE / (heard + written)
    print(
        f"{engine:14} encoder {heard:.3f} s, {len(tokens)} tokens {written:.3f} s, {speed:.1f} times as fast as speech"
    )
    return tokens


if __name__ == "__main__":
    main()
