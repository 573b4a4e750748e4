"""Recipes as values and as text: read, override, print, compare; the registry of components; the user's code."""

from groupwise.data.rooms import open_room

open_room(__name__)
