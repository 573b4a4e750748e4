# Made by tools/front_doors.py from the `__all__` of each file.
from groupwise.learner.forward import forward as forward
from groupwise.learner.optimizer import AdamW as AdamW
from groupwise.learner.plan import StepPlan as StepPlan
from groupwise.learner.plan import make_plan as make_plan
from groupwise.learner.plan import measure_plan as measure_plan
from groupwise.learner.routing import Routing as Routing
from groupwise.learner.routing import check_routing as check_routing
from groupwise.learner.routing import mixture as mixture
from groupwise.learner.side_models import EMA as EMA
from groupwise.learner.side_models import Given as Given
from groupwise.learner.side_models import InitialPolicy as InitialPolicy
from groupwise.learner.side_models import SideModel as SideModel
from groupwise.learner.update import NO_TOKEN as NO_TOKEN
from groupwise.learner.update import Learner as Learner
from groupwise.learner.update import StepResult as StepResult
