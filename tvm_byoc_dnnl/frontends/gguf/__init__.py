"""Language models in GGUF files, the format of llama.cpp, as models of ONNX with ONNX Runtime's own operators."""
