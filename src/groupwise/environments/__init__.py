"""The other side of a conversation: tools, and the user's own environment."""

from groupwise.data.rooms import open_room

open_room(__name__)
