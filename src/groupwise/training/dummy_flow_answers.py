"""Made-up answers of a flow model, on which a user's grade function of states is tried before a run."""

from itertools import pairwise
from typing import Any

import numpy as np

from groupwise.config.recipe import Recipe
from groupwise.data import Finish, Sample
from groupwise.models import KINDS, encode_action, find_model, read_shape
from groupwise.models.flow.denoising_actions import Arrays, Pixels
from groupwise.verifiers.function_verifier import made_up_texts


def made_up_states(recipe: Recipe) -> list[Sample]:
    """Answers with the states and steps of the recipe's flow model; texts for models of other kinds.

    The first final state is 0, the others are ramps between -1 and 1. The first state of each is 1. For a
    pipeline the answers also have pictures.
    """
    shape: Any = read_shape(find_model(recipe.model, weights=False))
    if not shape.tokens_are_denoising_steps or recipe.method.denoise is None:
        return made_up_texts()
    shape = KINDS[shape.kind_name].sized(shape, recipe.pipeline)
    pictures: list[Pixels | None] = [None] * 3
    if shape.graded != shape.state_shape:  # it has pictures, decoded from latents
        pictures = [((x + 1) * 127.5).astype(np.uint8).transpose(1, 2, 0) for x in ramps(shape.graded)]
    steps = recipe.method.denoise.steps
    return [made_up_state(final, steps, picture) for final, picture in zip(ramps(shape.state_shape), pictures)]


def ramps(shape: tuple[int, ...]) -> list[Arrays]:
    """Zeros, the numbers from -1 to 1, and those from 1 to -1."""
    ramp = np.linspace(-1, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape)
    return [np.zeros_like(ramp), ramp, -ramp]


def made_up_state(final: Arrays, steps: int, picture: Pixels | None = None) -> Sample:
    """A finished answer whose states go evenly from 1 to `final`, with its decoded picture."""
    states = [(final + (1 - final) * (1 - i / steps)).astype(np.float32) for i in range(steps + 1)]
    actions = [encode_action(before, after, after) for before, after in pairwise(states)]
    path = (*actions[:-1], encode_action(states[-2], states[-1], states[-1], picture=picture))
    tokens = tuple(range(steps))
    return Sample(
        context=(),
        stream=(0,),
        finish=Finish.stop,
        tokens=tokens,
        origin=(0,) * steps,
        logp=(0.0,) * steps,
        actions=path,
    )
