"""Calls a recipe's agent once before a run, with a made-up policy."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from groupwise.checks.check_result import CheckResult
from groupwise.config.recipe import Recipe
from groupwise.core import Usage, in_daemon_thread
from groupwise.data import ContextKey, Draw, Finish, Generation, GenerationRequest, Ids, Picture, Verdict, all_problems
from groupwise.rollout import AgentProgram, AgentRunner, Episode, RolloutSetting, SinglePromptSampler
from groupwise.rollout.agents.runner import is_async
from groupwise.training.build_run import RunInputs
from groupwise.verifiers import EnvironmentVerdictVerifier

MOST_SECONDS = 30.0
"""The time limit of the trial, in seconds."""
GRACE = 10.0
"""Seconds that an async agent may take to end after its time limit."""


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

    async def score(
        self, context: Ids, tokens: Ids, *, temperature: float = 1.0, pictures: Sequence[Picture] = ()
    ) -> tuple[float, ...]:
        return (-1.0,) * len(tokens)

    async def load(self, version: int, weights: Mapping[str, Tensor]) -> None:
        raise AssertionError("a made-up policy has no weights")

    def prefill(self, contexts: Sequence[ContextKey]) -> None:
        return None


def try_agent(recipe: Recipe, runner: AgentRunner, inputs: RunInputs) -> CheckResult:
    """Run the agent on the first problem. Its tools run, too.

    An error if the agent fails at a request that is refused, if it blocks the event loop, or if it returns no reward
    and the recipe has no verifier. A note if it fails otherwise, which may be due to the answer.
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
    sampler = SinglePromptSampler(draw=Draw(0, problems[0], 1), rollout_setting=setting)
    trial = replace(runner, deadline=min(runner.deadline, MOST_SECONDS))
    try:
        episode, verdict = tried_once(trial, sampler)
    except Usage as error:
        return CheckResult([error])
    refusal = episode.latest_request_error
    if verdict is not None and verdict.cause and refusal is not None and refusal.status in (400, 404):
        what = f"a request of the agent is refused: {refusal.message}"
        return CheckResult([Usage(what, evidence=verdict.cause, fix=refusal.fix or "change the request")])
    if verdict is not None and verdict.cause:
        return CheckResult((), [f"note: on a made-up answer, {verdict.cause}"])
    if not episode.answered_calls:
        return CheckResult((), [f"note: the agent made no request for {problems[0].id}"])
    if verdict is None and isinstance(inputs.verifier, EnvironmentVerdictVerifier):
        what = f"the agent returns no reward, and {recipe.task.label} has no verifier"
        fix = "return a reward from the agent, or add --reward math, or another verifier"
        if isinstance(runner.agent, AgentProgram):
            fix = fix.replace("return a reward from the agent", 'end its output with a line such as {"reward": 0.5}')
        return CheckResult([Usage(what, fix=fix)])
    return CheckResult()


def tried_once(runner: AgentRunner, sampler: SinglePromptSampler) -> tuple[Episode, Verdict | None]:
    """The episode of one run of the agent, and its verdict. `Usage` if an async agent blocks its event loop."""
    if not is_async(runner.agent):
        return asyncio.run(runner.run(sampler, sampler.draw, 0))

    async def limited() -> tuple[Episode, Verdict | None]:
        async with asyncio.timeout(runner.deadline + GRACE):
            return await in_daemon_thread(lambda: asyncio.run(runner.run(sampler, sampler.draw, 0)))

    try:
        return asyncio.run(limited())
    except TimeoutError:
        what = f"the agent blocks the event loop: it did not end within {runner.deadline + GRACE:g} seconds"
        fix = "write def in place of async def, so that it runs in a thread, or await what it waits for"
        raise Usage(what, fix=fix) from None
