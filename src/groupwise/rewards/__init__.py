"""Verdicts to numbers: what shapes a reward, and which rollouts are kept."""

from groupwise.data.rooms import open_room

open_room(__name__)
