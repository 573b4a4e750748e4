"""Published methods, one a file: each is a function that returns a `Method`, with its reference beside it."""

from groupwise.data.rooms import open_room

open_room(__name__)
