"""The Python interface: `import groupwise as gw`, then `gw.train`, `gw.evaluate`, `gw.sample`, `gw.resume`."""

from groupwise.core.lazy_imports import open_room

open_room(__name__)
