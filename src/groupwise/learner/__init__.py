"""The learner: forward, microbatches, backward, optimizer, and side models."""

from groupwise.data.rooms import open_room

open_room(__name__)
