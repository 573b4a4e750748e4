"""What every room needs: typed errors, checked fields, bounded files, and names that are imported on first use."""

from groupwise.core.lazy_imports import open_room

open_room(__name__)
