"""Stored answers: demonstrations and preference pairs of the data rows, in place of sampled answers.

The strategy `Stored` writes the answers of a row as samples, so that loop, learner, checkpoints and report are those of
every method. These methods need no verifier, and no engine but for an evaluation of generated answers.
"""

from groupwise.core.lazy_imports import open_room

open_room(__name__)
