"""Text from a language model: the folder of a decoder and its tokenizer, the choice of tokens, pieces of text."""
