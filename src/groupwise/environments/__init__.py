"""Environments of conversations: tool use, and classes from a user's file."""

from groupwise.data.rooms import open_room

open_room(__name__)
