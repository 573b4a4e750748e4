# Made by tools/front_doors.py from the `__all__` of each file.
from groupwise.learner.followers import Start as Start
from groupwise.learner.forward import forward as forward
from groupwise.learner.optimizer import AdamW as AdamW
from groupwise.learner.plan import Step as Step
from groupwise.learner.plan import ahead as ahead
from groupwise.learner.plan import cut as cut
from groupwise.learner.routing import Routing as Routing
from groupwise.learner.routing import mixture as mixture
from groupwise.learner.routing import see_routing as see_routing
from groupwise.learner.update import NO_TOKEN as NO_TOKEN
from groupwise.learner.update import Learner as Learner
from groupwise.learner.update import StepTaken as StepTaken
