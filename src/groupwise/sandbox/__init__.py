"""The sandbox for model-written code, and the worker processes of sandboxes and verifiers."""

from groupwise.data.rooms import open_room

open_room(__name__)
