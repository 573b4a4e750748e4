"""A batch to one scalar: ratios, surrogates, weights, penalties, masks, aggregates, and what to look at."""

from groupwise.data.rooms import open_room

open_room(__name__)
