"""Decoder-only, encoder-only and encoder-decoder models: GPT, BERT, T5, ELMo, and any kind of token."""
