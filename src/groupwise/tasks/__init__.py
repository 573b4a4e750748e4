"""Tasks: the sources of problems."""

from groupwise.data.rooms import open_room

open_room(__name__)
