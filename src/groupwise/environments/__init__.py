"""Environments of conversations: tool use, and classes from a user's file."""

from groupwise.core.lazy_imports import open_room

open_room(__name__)
