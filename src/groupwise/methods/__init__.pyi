# Made by tools/front_doors.py from the `__all__` of each file.
from groupwise.methods.cispo import cispo as cispo
from groupwise.methods.dapo import dapo as dapo
from groupwise.methods.dr_grpo import dr_grpo as dr_grpo
from groupwise.methods.gmpo import gmpo as gmpo
from groupwise.methods.grpo import grpo as grpo
from groupwise.methods.gspo import gspo as gspo
from groupwise.methods.gspo_token import gspo_token as gspo_token
from groupwise.methods.method import Method as Method
from groupwise.methods.published import published as published
from groupwise.methods.reference import Difference as Difference
from groupwise.methods.reference import Reference as Reference
from groupwise.methods.reference import reference_of as reference_of
from groupwise.methods.reinforce_pp import reinforce_pp as reinforce_pp
from groupwise.methods.rloo import rloo as rloo
from groupwise.methods.sapo import sapo as sapo
from groupwise.methods.schedules import Ramp as Ramp
from groupwise.methods.schedules import Schedule as Schedule
