"""Decoder-only language models: shapes of published architectures, weights, packed attention, GGUF."""
