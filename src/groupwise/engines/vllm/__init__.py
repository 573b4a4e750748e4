"""vLLM as an engine in its own process and environment."""
