"""Draws to rollouts: curricula, strategies, the sampler that strategies meet, the engine, and the buffer."""

from groupwise.data.rooms import open_room

open_room(__name__)
