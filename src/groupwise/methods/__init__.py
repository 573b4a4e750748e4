"""Published methods, one a file: each is a function that returns a `Method`, with its reference beside it."""

from groupwise.methods.cispo import cispo
from groupwise.methods.dapo import dapo
from groupwise.methods.dr_grpo import dr_grpo
from groupwise.methods.gmpo import gmpo
from groupwise.methods.grpo import grpo
from groupwise.methods.gspo import gspo
from groupwise.methods.gspo_token import gspo_token
from groupwise.methods.method import Method
from groupwise.methods.reference import Difference, Reference, reference_of
from groupwise.methods.reinforce_pp import reinforce_pp
from groupwise.methods.rloo import rloo
from groupwise.methods.sapo import sapo
from groupwise.methods.schedules import Ramp, Schedule

published = (grpo, dr_grpo, dapo, gspo, gspo_token, rloo, reinforce_pp, cispo, gmpo, sapo)
"""Every published method, in the order in which they are shown."""

__all__ = [
    "Difference",
    "Method",
    "Ramp",
    "Reference",
    "Schedule",
    "cispo",
    "dapo",
    "dr_grpo",
    "gmpo",
    "grpo",
    "gspo",
    "gspo_token",
    "published",
    "reference_of",
    "reinforce_pp",
    "rloo",
    "sapo",
]
