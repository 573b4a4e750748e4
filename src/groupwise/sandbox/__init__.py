"""Programs that a model wrote, run where they can do no harm; the worker processes behind it."""

from groupwise.data.rooms import open_room

open_room(__name__)
