"""The values that flow from a problem to a gradient, and the protocols that two rooms speak."""

from groupwise.data.rooms import open_room

open_room(__name__)
