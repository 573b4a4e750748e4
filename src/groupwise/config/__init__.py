"""Recipes (all settings of a run): read, override, print and compare them; find components and the user's code."""

from groupwise.core.lazy_imports import open_room

open_room(__name__)
