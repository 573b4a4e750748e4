"""From a scalar to new weights: forward, pieces, optimizer, and the models beside the policy."""

from groupwise.learner.followers import Start
from groupwise.learner.forward import forward
from groupwise.learner.optimizer import AdamW
from groupwise.learner.plan import Step, ahead, cut
from groupwise.learner.routing import Routing, mixture, see_routing
from groupwise.learner.update import NO_TOKEN, Learner, StepTaken

__all__ = [
    "NO_TOKEN",
    "AdamW",
    "Learner",
    "Routing",
    "Start",
    "Step",
    "StepTaken",
    "ahead",
    "cut",
    "forward",
    "mixture",
    "see_routing",
]
