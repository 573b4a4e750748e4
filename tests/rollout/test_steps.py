"""Process verifiers: the numbers of a verdict's steps become marks at the steps' last tokens."""

import asyncio
import json
import math
from typing import Any

import pytest
import torch

from groupwise.data import WRITTEN, Outcome, Prompt, Rollout, Sample, TokenMark, Verdict, pack
from groupwise.rollout import Turns
from groupwise.runs.environment_reply_log import observation_from_json, observation_to_json
from groupwise.verifiers.combined import BuiltMember, CombinedVerifier
from tests.processes import PATIENCE
from tests.rollout.fakes import judged_by
from tests.rollout.test_sampler import CONTEXT
from tests.rollout.test_sampler import sampler as sampler_of
from tests.rollout.test_turns import Replies, conversation, turns_of


def process_verifier(*steps: tuple[int, float]) -> Any:
    async def verify(prompt: Prompt, sample: Sample) -> Verdict:
        return Verdict(Outcome.wrong, step_scores={"step": steps})

    return judged_by(verify)


def numbers(sample: Sample, name: str = "step") -> dict[int, float]:
    """The numbers of a mark by token."""
    return {i: x for i, x in enumerate(sample.token_marks.get(name, ())) if not math.isnan(x)}


def test_numbers_are_at_the_last_token_of_each_step() -> None:
    """Tokens end at 2, 5, 5 (half a character) and 9: positions in them belong to the first that holds them."""
    sample = Sample(context=(1,), stream=(0,)).insert((5, 6, 7, 8), WRITTEN).with_text("a b cé d!", (2, 5, 5, 9))
    verdict = Verdict(Outcome.wrong, step_scores={"step": [(1, 0.5), (2, 0.25), (5, 1.0), (9, -2.0)]})
    assert numbers(sample.with_verdict(verdict)) == {0: 0.75, 1: 1.0, 3: -2.0}
    for end in (0, 10):
        with pytest.raises(ValueError, match=f"a verdict's step ends at character {end}, but the text has 9"):
            sample.with_verdict(Verdict(Outcome.wrong, step_scores={"step": [(end, 1.0)]}))


def test_parts_read_them_as_a_mark() -> None:
    sampler = sampler_of(verifier=process_verifier((3, 0.5), (10, 1.0)))
    samples = asyncio.run(sampler.verify(asyncio.run(sampler.sample(CONTEXT, 2))))
    batch = pack([Rollout(sampler.draw, tuple(samples))])
    marks = batch[TokenMark("step")]
    assert batch.sequences.total(marks.nan_to_num(0.0)).tolist() == [1.5, 1.5]
    assert (~marks.isnan()).nonzero().flatten().tolist() == [2, 9, 13, 20]
    assert torch.equal(batch.take([1])[TokenMark("step")][9], torch.tensor(1.0, dtype=torch.float64))


@pytest.mark.parametrize(
    ("step", "cause"),
    [
        ((11, 1.0), "the verifier returned a step 'step' that ends at 11 in a text of 10 characters"),
        ((0, 1.0), "the verifier returned a step 'step' that ends at 0 in a text of 10 characters"),
        ((3, math.nan), "the verifier returned the step 'step' at 3, which is not finite"),
    ],
)
def test_an_invalid_step_makes_an_answer_unverifiable(step: tuple[int, float], cause: str) -> None:
    sampler = sampler_of(verifier=process_verifier(step))
    (sample,) = asyncio.run(sampler.verify(asyncio.run(sampler.sample(CONTEXT))))
    assert sample.verdict is not None and sample.verdict.outcome is Outcome.unverifiable
    assert sample.verdict.cause == cause and sample.token_marks == {}


def test_steps_of_a_conversation_are_those_of_its_last_turn() -> None:
    verified = conversation(Replies(["35;", None]), turns_of("7*5=", "+1=36"), verifier=process_verifier((3, 0.5)))
    first = len(verified.tokens) - len(verified.last_turn.tokens)
    assert first > 0 and numbers(verified) == {first + 2: 0.5}
    ended = Verdict(Outcome.wrong, step_scores={"step": ((5, 0.25),)})
    judged = conversation(Replies(["35;", ended]), turns_of("7*5=", "+1=36"), turns=Turns(max_turns=4))
    assert numbers(judged) == {first + 4: 0.25}
    late = Verdict(Outcome.wrong, step_scores={"step": ((6, 0.25),)})
    broken = conversation(Replies(["35;", late]), turns_of("7*5=", "+1=36"))
    assert broken.verdict is not None and broken.verdict.cause.startswith("the environment returned a step 'step'")


def test_a_combination_of_verifiers_names_their_steps() -> None:
    members = [BuiltMember("a", process_verifier((1, 0.5)), 1.0), BuiltMember("b", process_verifier((2, 1.0)), 1.0)]
    verdict = asyncio.run(
        CombinedVerifier(members, deadline=PATIENCE)(Prompt("p", ()), Sample(context=(), stream=(0,), text="so 4"))
    )
    assert verdict.step_scores == {"a/step": ((1, 0.5),), "b/step": ((2, 1.0),)}


def test_a_replayed_verdict_equals_the_recorded_one() -> None:
    verdict = Verdict(Outcome.wrong, step_scores={"step": ((3, 0.5), (4, 1.0))})
    assert observation_from_json(json.loads(json.dumps(observation_to_json(verdict)))) == verdict
