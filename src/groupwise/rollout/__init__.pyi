# Made by tools/front_doors.py from the `__all__` of each file.
from groupwise.rollout.anchors import Anchored as Anchored
from groupwise.rollout.buffer import Buffer as Buffer
from groupwise.rollout.buffer import Rollouts as Rollouts
from groupwise.rollout.buffer import answers as answers
from groupwise.rollout.cues import Cued as Cued
from groupwise.rollout.curriculum import Shuffled as Shuffled
from groupwise.rollout.engine import NativeEngine as NativeEngine
from groupwise.rollout.greedy import WithGreedy as WithGreedy
from groupwise.rollout.native import Native as Native
from groupwise.rollout.recent import RecentRewards as RecentRewards
from groupwise.rollout.sampler import DrawSampler as DrawSampler
from groupwise.rollout.setting import RolloutSetting as RolloutSetting
from groupwise.rollout.siblings import SiblingView as SiblingView
from groupwise.rollout.strategy import Independent as Independent
from groupwise.rollout.strategy import Turns as Turns
from groupwise.rollout.wording import check_wording as check_wording
from groupwise.rollout.wording import fill as fill
