"""Made-up answers of a flow model, on which a user's grade function of states is tried before a run."""

from itertools import pairwise

import numpy as np

from groupwise.config.recipe import Recipe
from groupwise.data import Finish, Sample
from groupwise.models import FlowShape, encode_action, find_model, read_shape
from groupwise.verifiers.functions import made_up_texts


def made_up_states(recipe: Recipe) -> list[Sample]:
    """Answers with the states and steps of the recipe's flow model; those of a language model for another model.

    The first final state is 0, the others are ramps between -1 and 1. The first state of each is 1.
    """
    shape = read_shape(find_model(recipe.model, weights=False))
    if not isinstance(shape, FlowShape) or recipe.method.denoise is None:
        return made_up_texts()
    ramp = np.linspace(-1, 1, int(np.prod(shape.state)), dtype=np.float32).reshape(shape.state)
    return [made_up_state(final, recipe.method.denoise.steps) for final in (np.zeros_like(ramp), ramp, -ramp)]


def made_up_state(final: np.ndarray, steps: int) -> Sample:
    """A finished answer whose states go evenly from 1 to `final`."""
    states = [final + (1 - final) * np.float32(1 - i / steps) for i in range(steps + 1)]
    path = tuple(encode_action(before, after, after) for before, after in pairwise(states))
    tokens = tuple(range(steps))
    return Sample(
        context=(), stream=(0,), finish=Finish.stop, tokens=tokens, origin=(0,) * steps, logp=(0.0,) * steps, path=path
    )
