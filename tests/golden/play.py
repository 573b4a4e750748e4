"""A strategy with a fake engine: the rollout of one problem, from written answers."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from groupwise.data import Draw, GenerationRequest, Ids, Outcome, Prompt, Rollout, Sample, Verdict
from groupwise.rollout.prompt_template import worded
from tests.rollout.fakes import FakeEngine, sampler_of, tokenizer

Answer = Callable[[GenerationRequest], Ids]
RIGHT, WRONG = 7, 4
PLAIN = (5,)


def text(*ids: int) -> str:
    return tokenizer().decode_with_ends(ids)[0]


async def sevens(prompt: Prompt, sample: Sample) -> Verdict:
    """Correct if the answer has a 7. The feedback is the text of a 9."""
    correct = RIGHT in sample.tokens
    return Verdict(Outcome.correct if correct else Outcome.wrong, feedback=text(9))


def play(
    strategy: Any,
    tokens: Answer,
    n: int = 3,
    *,
    metadata: Mapping[str, Any] | None = None,
    engine: FakeEngine | None = None,
    setting: Mapping[str, Any] | None = None,
    **row: Any,
) -> tuple[Rollout, FakeEngine]:
    """The rollout of a problem with this row, where `tokens` are the engine's answers."""
    engine = engine or FakeEngine(tokens)
    metadata = metadata or ({"level": row["level"]} if "level" in row else {})
    draw = Draw(0, Prompt("p", PLAIN, text=text(*PLAIN), row=row), n, metadata)
    sampler = sampler_of(engine, draw, **{"verifier": sevens, **(setting or {})})
    return asyncio.run(worded(strategy, "packaged")(draw, sampler)), engine


def roles(rollout: Rollout) -> list[str]:
    return [s.role for s in rollout.samples]
