"""Numbers to an advantage a sample, then a credit a token."""

from groupwise.data.rooms import open_room

open_room(__name__)
