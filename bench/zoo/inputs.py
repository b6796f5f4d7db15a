"""Inputs that make a model work: a picture with edges and flat parts, words and their padding, a voice-like sound."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

__all__ = ["MAKERS", "Maker", "picture"]

Shape = tuple[int, ...]
Maker = Callable[[np.random.Generator, Shape], np.ndarray]


# Letters of 5×7 dots, a row per number: H, E, L, T and O.
_GLYPHS = (
    (17, 17, 17, 31, 17, 17, 17),
    (31, 16, 16, 30, 16, 16, 31),
    (16, 16, 16, 16, 16, 16, 31),
    (31, 4, 4, 4, 4, 4, 4),
    (14, 17, 17, 17, 17, 17, 14),
)
_DOT = 2  # pixels


def _text(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    """Lines of words, True where there is ink."""
    ink = np.zeros((height, width), bool)
    bits = [np.array([[row >> k & 1 for k in range(4, -1, -1)] for row in glyph], bool) for glyph in _GLYPHS]
    high, wide = 7 * _DOT, 5 * _DOT
    for top in range(high // 2, height - high, 3 * high):
        for left in range(wide, width - 2 * wide, wide + _DOT):
            if rng.random() > 0.2:  # else the space between two words
                glyph = bits[rng.integers(len(bits))]
                ink[top : top + high, left : left + wide] = glyph.repeat(_DOT, 0).repeat(_DOT, 1)
    return ink


def picture(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """Dark text on light ground, a shaded disc and some noise, in [-1, 1]; channels first or last.

    Noise alone leaves detectors at outputs near 1e-6, where nothing can be compared.
    """
    last = shape[-1] == 3
    height, width = shape[1:3] if last else shape[2:]
    y, x = np.mgrid[:height, :width] / np.array([height, width]).reshape(2, 1, 1)
    page = 0.9 - 0.2 * x
    disc = (x - 0.7) ** 2 + (y - 0.75) ** 2 < 0.04
    page[disc] = 0.5 * np.cos(9 * (x + y))[disc]
    page[_text(rng, height, width) & ~disc] = -0.9
    tints = np.array([1.0, 0.95, 0.85])
    image = page[..., None] * tints + 0.02 * rng.standard_normal((height, width, 3))
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
