"""The native engine: continuous batching over the learner's own weights, with cached prefixes."""
