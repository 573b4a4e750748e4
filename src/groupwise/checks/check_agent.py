"""Calls a recipe's agent once before a run, with a made-up policy."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from groupwise.checks.check_result import CheckResult
from groupwise.config.recipe import Recipe
from groupwise.core import Usage
from groupwise.data import ContextKey, Draw, Finish, Generation, GenerationRequest, Ids, all_problems
from groupwise.rollout import AgentProgram, AgentRunner, DrawSampler, RolloutSetting
from groupwise.training.build_run import RunInputs
from groupwise.verifiers import EnvironmentVerdict

MOST_SECONDS = 30.0
"""The time limit of the trial, in seconds."""


@dataclass(frozen=True, slots=True)
class FakeEngine:
    """An engine whose answer to every request is one token, or two: text, and the end of the answer."""

    answer: Ids
    version: int = 0

    async def sample(self, request: GenerationRequest) -> Generation:
        tokens = self.answer[: request.limit]
        finish = Finish.stop if len(tokens) == len(self.answer) else Finish.length
        n = len(tokens)
        return Generation(tokens=tokens, logp=(-1.0,) * n, versions=(0,) * n, finish=finish)

    async def score(self, context: Ids, tokens: Ids, *, temperature: float = 1.0) -> tuple[float, ...]:
        return (-1.0,) * len(tokens)

    async def load(self, version: int, weights: Mapping[str, Tensor]) -> None:
        raise AssertionError("a made-up policy has no weights")

    def prefill(self, contexts: Sequence[ContextKey]) -> None:
        return None


def try_agent(recipe: Recipe, runner: AgentRunner, inputs: RunInputs) -> CheckResult:
    """Run the agent on the first problem. Its tools run, too.

    An error if it returns no reward and the recipe has no verifier; a note if it fails, which may be due to the answer.
    """
    problems = all_problems(inputs.task)
    if not problems:
        return CheckResult()
    tokenizer = inputs.tokenizer
    text = next(
        i for i in range(len(tokenizer.backend_tokenizer.get_vocab())) if i not in tokenizer.control_tokens.control_ids
    )
    setting = RolloutSetting(
        engine=FakeEngine((text, *sorted(tokenizer.eos_ids)[:1])),
        verifier=inputs.verifier,
        tokenizer=tokenizer,
        sampling=recipe.sampling,
        seed=recipe.seed,
    )
    sampler = DrawSampler(draw=Draw(0, problems[0], 1), rollout_setting=setting)
    trial = replace(runner, deadline=min(runner.deadline, MOST_SECONDS))
    episode, verdict = asyncio.run(trial.run(sampler, sampler.draw, 0))
    if verdict is not None and verdict.cause:
        return CheckResult((), [f"note: on a made-up answer, {verdict.cause}"])
    if not episode.answered_calls:
        return CheckResult((), [f"note: the agent made no request for {problems[0].id}"])
    if verdict is None and isinstance(inputs.verifier, EnvironmentVerdict):
        what = f"the agent returns no reward, and {recipe.task.label} has no verifier"
        fix = "return a reward from the agent, or add --reward math, or another verifier"
        if isinstance(runner.agent, AgentProgram):
            fix = fix.replace("return a reward from the agent", 'end its output with a line such as {"reward": 0.5}')
        return CheckResult([Usage(what, fix=fix)])
    return CheckResult()
