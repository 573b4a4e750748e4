# Made by tools/front_doors.py from the `__all__` of each file.
from groupwise.rewards.filters import correct_only as correct_only
from groupwise.rewards.filters import everything as everything
from groupwise.rewards.filters import mixed_groups as mixed_groups
from groupwise.rewards.filters import mixed_outcomes as mixed_outcomes
from groupwise.rewards.filters import mixed_scores as mixed_scores
from groupwise.rewards.filters import not_all_correct as not_all_correct
from groupwise.rewards.shaping import AddSubscore as AddSubscore
from groupwise.rewards.shaping import AddWellFormed as AddWellFormed
from groupwise.rewards.shaping import Correctness as Correctness
from groupwise.rewards.shaping import Score as Score
from groupwise.rewards.subscore_rewards import SubscoreReward as SubscoreReward
from groupwise.rewards.texture_reward import TextureWeightedReward as TextureWeightedReward
