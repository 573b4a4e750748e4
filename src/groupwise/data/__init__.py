"""The data types that flow from a prompt to a gradient, and the protocols (sockets) that parts implement."""

from groupwise.data.rooms import open_room

open_room(__name__)
