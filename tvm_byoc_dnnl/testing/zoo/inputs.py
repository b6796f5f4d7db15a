"""Inputs that make a model work: a picture with edges and flat parts, words and their padding, a voice-like sound."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

__all__ = ["MAKERS", "Maker", "picture"]

Shape = tuple[int, ...]
Maker = Callable[[np.random.Generator, Shape], np.ndarray]


def picture(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """Lines of dark marks on light ground, a disc and some noise, in [-1, 1]; channels first or last.

    Noise alone leaves detectors at outputs near 1e-6, where nothing can be compared.
    """
    last = shape[-1] == 3
    height, width = shape[1:3] if last else shape[2:]
    y, x = np.mgrid[:height, :width] / np.array([height, width]).reshape(2, 1, 1)
    page = 0.8 - 0.3 * x
    marks = (np.sin(40 * x + 7 * np.sin(9 * x)) > 0.2) & (np.mod(6 * y, 1) > 0.5) & (abs(x - 0.5) < 0.4)
    page[marks] = -0.8
    disc = (x - 0.6) ** 2 + (y - 0.45) ** 2 < 0.05
    page[disc] = 0.5 * np.cos(20 * (x + y))[disc]
    tints = np.array([1.0, 0.9, 0.75])
    image = page[..., None] * tints + 0.05 * rng.standard_normal((height, width, 3))
    image = np.clip(image if last else image.transpose(2, 0, 1), -1, 1)
    return np.broadcast_to(image, shape).astype("float32")


def sound(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """A gliding tone with harmonics under a slow envelope, as long as all samples together."""
    count = int(np.prod(shape))
    t = np.arange(count) / 16000
    phase = 2 * np.pi * (150 * t + 20 * np.sin(2 * t))
    tone = sum(np.sin(k * phase) / k for k in range(1, 8))
    voice = 0.2 * tone * (0.6 + 0.4 * np.sin(9 * t)) + 0.01 * rng.standard_normal(count)
    return voice.reshape(shape).astype("float32")


def _padded_mask(_rng: np.random.Generator, shape: Shape) -> np.ndarray:
    mask = np.ones(shape, "int64")
    mask[..., -max(shape[-1] // 8, 1) :] = 0
    return mask


def _bytes(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    text = b"def f(x):\n    return [y for y in x if y > 0]\n\nimport numpy as np\nclass A:\n    pass\n"
    return np.resize(np.frombuffer(text, "uint8"), shape).astype("int32")


def _segments(_rng: np.random.Generator, shape: Shape) -> np.ndarray:
    return np.broadcast_to(np.arange(shape[-1]) >= shape[-1] // 2, shape).astype("int64")


def _words(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    return rng.integers(0, 30000, shape)


def _zeros(_rng: np.random.Generator, shape: Shape) -> np.ndarray:
    return np.zeros(shape, "float32")


#: input name, or model/input where that says too little → how to make it
MAKERS: dict[str, Maker] = {
    **dict.fromkeys(["image", "pixel_values", "images", "input_1", "input_2", "input_3"], picture),
    **dict.fromkeys([f"{m}/x" for m in ("ocr_detection", "ocr_recognition", "ocr_direction")], picture),
    **dict.fromkeys([f"{m}/x" for m in ("ocr_detection_v6", "ocr_recognition_v6", "page_orientation")], picture),
    "input_ids": _words,
    "attention_mask": _padded_mask,
    "token_type_ids": _segments,
    "bytes": _bytes,
    "voice_activity/input": sound,
    "voice_activity_lstm/input": sound,
    "voice_activity_lstm/h": _zeros,
    "voice_activity_lstm/c": _zeros,
    "serving_default_input_2:0": sound,
    "speech_quality/input_1": sound,
    "speech_quality_p808/input_1": lambda rng, shape: rng.uniform(-40, 0, shape).astype("float32") / 40,
}
