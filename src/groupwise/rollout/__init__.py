"""Rollouts: curricula, sampling strategies, the sampler, the native engine and the buffer."""

from groupwise.core.lazy_imports import open_room

open_room(__name__)
