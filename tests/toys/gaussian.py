"""A policy whose actions are numbers: it moves a point in the plane by Gaussian steps, as a flow model denoises.

A token is the number of a step. Its action in `Sample.actions` is the pair of points before and after the step.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from groupwise.data import (
    Batch,
    Entropy,
    Finish,
    Generation,
    GenerationRequest,
    Ids,
    Logp,
    NeededMeasure,
    Outcome,
    Picture,
    Prompt,
    Sample,
    Verdict,
)
from groupwise.models import keyed_random

STEPS, PROMPTS, STD = 4, 4, 0.5


class GaussianPolicy(nn.Module):
    """Each step goes from x to a point of `N(x + velocity(x, step, prompt) / STEPS, STD^2 / STEPS)`."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(2 + 1 + PROMPTS, width), nn.Tanh(), nn.Linear(width, 2))

    def means(self, points: Tensor, steps: Tensor, prompts: Tensor) -> Tensor:
        inputs = [points, steps[:, None] / STEPS, nn.functional.one_hot(prompts, PROMPTS).to(points)]
        return points + self.net(torch.cat(inputs, -1)) / STEPS

    def logp(self, actions: Tensor, steps: Tensor, prompts: Tensor) -> Tensor:
        """The mean over an action's numbers of their log-densities, as in Flow-GRPO, arXiv:2505.05470."""
        distribution = torch.distributions.Normal(self.means(actions[:, 0], steps, prompts), STD / STEPS**0.5)
        return distribution.log_prob(actions[:, 1]).mean(-1)

    def measure(
        self, batch: Batch, wanted: Sequence[NeededMeasure], side_models: Mapping[str, "GaussianPolicy"]
    ) -> dict[NeededMeasure, Tensor]:
        """Log-probs of the actions in the path, and the constant entropy of a step, per number."""
        trained = [(s, i) for s in batch.samples for i, t in enumerate(s.trained) if t]
        actions = torch.from_numpy(decode([s.actions[i] for s, i in trained]))
        steps = torch.tensor([float(s.tokens[i]) for s, i in trained])
        prompts = torch.tensor([s.context[0] - 2 for s, _ in trained], dtype=torch.long)
        entropy = 0.5 * math.log(2 * math.pi * math.e * STD**2 / STEPS)
        models: dict[str, GaussianPolicy] = {"policy": self, **side_models}
        compute: dict[type, Any] = {
            Logp: lambda m: models[m.model].logp(actions, steps, prompts),
            Entropy: lambda _: torch.full((len(steps),), entropy),
        }
        return {m: compute[type(m)](m) for m in wanted}


class GaussianEngine:
    """Takes the steps of one request after another. The first point of a sample is random, too."""

    def __init__(self, policy: GaussianPolicy, seed: int) -> None:
        self.policy, self.seed, self.version = policy, seed, 0

    async def sample(self, request: GenerationRequest) -> Generation:
        path, logp = list(request.previous_actions), []
        first, last = request.already_generated_count, min(request.already_generated_count + request.limit, STEPS)
        for step in range(first, last):
            action, density = self._step(request, step, path[-1:])
            path.append(action)
            logp.append(density)
        finish = Finish.stop if last == STEPS else Finish.length
        tokens = tuple(range(first, last))
        return Generation(
            tokens=tokens, logp=tuple(logp), versions=(self.version,) * len(tokens), finish=finish,
            actions=tuple(path[first:]),
        )  # fmt: skip

    @torch.no_grad()
    def _step(self, request: GenerationRequest, step: int, path: list[bytes]) -> tuple[bytes, float]:
        random = keyed_random((self.seed, request.random_purpose), request.draw_id, *request.stream, step)
        normal = torch.tensor([[random.gauss() for _ in range(2)] for _ in range(2)])
        before = torch.from_numpy(decode(path))[:, 1] if path else normal[:1] / 2
        where = torch.tensor([float(step)]), torch.tensor([request.context[0] - 2])
        after = self.policy.means(before, *where) + normal[1:] * STD / STEPS**0.5
        action = torch.stack([before, after], 1)
        return action.numpy().tobytes(), self.policy.logp(action, *where).item()

    async def score(
        self, context: Ids, tokens: Ids, *, temperature: float = 1.0, pictures: Sequence[Picture] = ()
    ) -> tuple[float, ...]:
        raise AssertionError("no strategy of the toy scores")

    async def load(self, version: int, weights: Mapping[str, Tensor]) -> None:
        self.version = version

    def prefill(self, contexts: Sequence[Any]) -> None:
        return None


def decode(path: Sequence[bytes]) -> np.ndarray:
    """The points before and after each step: [steps, 2, 2]."""
    return np.frombuffer(b"".join(path), np.float32).reshape(-1, 2, 2).copy()


async def in_its_quadrant(prompt: Prompt, sample: Sample) -> Verdict:
    """Correct if the last point is in the prompt's quadrant of the plane."""
    x, y = decode(sample.actions[-1:])[0, 1]
    return Verdict(Outcome(int(2 * (x > 0) + (y > 0) == prompt.token_ids[0] - 2)))
