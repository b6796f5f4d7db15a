"""ResNet-50 from its ONNX file on this package, ONNX Runtime and TVM alone, in one table (``make demo``)."""

from __future__ import annotations

import sys

from tvm_byoc_dnnl.testing.bench import Settings, choose_engines, find_model, run

if __name__ == "__main__":
    engines = choose_engines(["byoc", "onnxruntime", "tvm"])
    sys.exit(any(c.failures for c in run([find_model("resnet50")], engines, Settings())))
