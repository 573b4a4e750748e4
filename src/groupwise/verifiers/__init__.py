"""What counts as right: text, numbers, formats, mathematics, code, user functions, a judge model."""

from groupwise.data.rooms import open_room

open_room(__name__)
