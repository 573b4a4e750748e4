"""From a scalar to new weights: forward, pieces, optimizer, and the models beside the policy."""

from groupwise.data.rooms import open_room

open_room(__name__)
