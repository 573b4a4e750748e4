"""From a scalar to new weights: forward, microbatches, optimizer, and the models beside the policy."""

from groupwise.data.rooms import open_room

open_room(__name__)
