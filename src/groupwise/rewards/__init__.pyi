# Made by tools/front_doors.py from the `__all__` of each file.
from groupwise.rewards.filters import everything as everything
from groupwise.rewards.filters import mixed_groups as mixed_groups
from groupwise.rewards.filters import mixed_outcomes as mixed_outcomes
from groupwise.rewards.filters import mixed_scores as mixed_scores
from groupwise.rewards.shaping import AddPart as AddPart
from groupwise.rewards.shaping import Correctness as Correctness
from groupwise.rewards.shaping import KLInReward as KLInReward
from groupwise.rewards.shaping import Overlong as Overlong
from groupwise.rewards.shaping import Score as Score
from groupwise.rewards.shaping import TruncatedIs as TruncatedIs
