"""Models that engine and learner share: decoder, checkpoints, tokenizer, sampling distributions, randomness."""

from groupwise.core.lazy_imports import open_room

open_room(__name__)
