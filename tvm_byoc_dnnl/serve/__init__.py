"""The server: compiled models, and language models, by the Open Inference Protocol and by OpenAI's."""
