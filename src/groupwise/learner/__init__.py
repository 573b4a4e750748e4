"""The learner: forward, microbatches, backward, optimizer, and models besides the policy, such as a reference."""

from groupwise.core.lazy_imports import open_room

open_room(__name__)
