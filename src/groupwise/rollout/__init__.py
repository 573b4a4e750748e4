"""Rollouts: curricula, sampling strategies, the sampler, the native engine and the buffer."""

from groupwise.data.rooms import open_room

open_room(__name__)
