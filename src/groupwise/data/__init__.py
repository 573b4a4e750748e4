"""The data types that flow from a prompt to a gradient, and the Protocols (sockets) that components implement."""

from groupwise.core.lazy_imports import open_room

open_room(__name__)
