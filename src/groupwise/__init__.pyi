# Made by tools/front_doors.py from the `__all__` of each file.
# ruff: noqa: F403
from groupwise.advantages import *
from groupwise.api import *
from groupwise.config import *
from groupwise.core import *
from groupwise.data import *
from groupwise.engines import *
from groupwise.environments import *
from groupwise.learner import *
from groupwise.methods import *
from groupwise.models import *
from groupwise.objective import *
from groupwise.rewards import *
from groupwise.rollout import *
from groupwise.sandbox import *
from groupwise.tasks import *
from groupwise.verifiers import *

__version__: str
