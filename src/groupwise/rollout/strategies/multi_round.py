"""Functions for sampling strategies with several rounds: sample and verify answers, or change how they are trained."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from groupwise.core import BadData, Usage
from groupwise.data import TEMPLATE, WRITTEN, Ids, Outcome, Sample, Sampler
from groupwise.rollout.gather_coroutines import together
from groupwise.rollout.prompt_template import fill


async def attempts(
    sampler: Sampler, context: Ids, n: int, *, group: int = 0, role: str = "answer", prefix: Ids = ()
) -> list[Sample]:
    """Sample `n` answers to one context, and verify them. They begin with the untrained tokens `prefix`."""
    starts = sampler.start(context, n, group=group, role=role)
    begun = [start.insert(prefix, TEMPLATE) for start in starts] if prefix else starts
    return await sampler.verify(await together(map(sampler.extend, begun)))


def is_correct(sample: Sample) -> bool:
    return sample.verdict is not None and sample.verdict.outcome is Outcome.correct


def none_correct(samples: Iterable[Sample]) -> bool:
    return not any(map(is_correct, samples))


def is_graded(sample: Sample) -> bool:
    """Whether the sample has a verdict, and it is not unverifiable."""
    return sample.verdict is not None and sample.verdict.outcome is not Outcome.unverifiable


def score_of(sample: Sample) -> float:
    """The score in the sample's verdict; 0 if it has no verdict."""
    return sample.verdict.value if sample.verdict else 0.0


def graded(samples: Iterable[Sample], *, role: str = "answer") -> list[int]:
    """1 for each correct sample of the role `role`, else 0; without unverifiable samples and samples without a verdict.

    Usage for scored answers, which are neither correct nor wrong.
    """
    outcomes = [s.verdict.outcome for s in samples if s.role == role and s.verdict is not None]
    if Outcome.scored in outcomes:
        fix = "set the smallest correct score, such as --correct_threshold 1.0"
        raise Usage("success rates need correct and wrong answers, and the verifier gives scores", fix=fix)
    return [int(outcome is Outcome.correct) for outcome in outcomes if outcome is not Outcome.unverifiable]


def with_role(samples: Iterable[Sample], role: str) -> tuple[Sample, ...]:
    """Copies of the samples with another role. Only samples whose role is in `Method.trains` are trained."""
    return tuple(replace(s, role=role) for s in samples)


def trained_under(sample: Sample, context: Ids) -> Sample:
    """A copy of the sample whose loss uses another prompt than the one that it was sampled from."""
    return replace(sample, prompt_views={**sample.prompt_views, "trained": context}).under("trained")


def as_written(sample: Sample, context: Ids) -> Sample:
    """A copy whose tokens are off-policy training targets after another prompt, without sampling log-probs.

    The prompt that it was sampled from becomes the view `sampled`.
    """
    n = len(sample.tokens)
    view = trained_under(sample, context)
    return replace(view, content_hash=sample.content_hash, origin=(WRITTEN,) * n, logp=(float("nan"),) * n, routes=())


def context_of(sampler: Sampler, prompt_template: str, values: dict[str, str]) -> Ids:
    """A prompt template filled with values, as the ids of a prompt (`prompt_of`)."""
    return prompt_of(sampler, fill(prompt_template, values))


def prompt_of(sampler: Sampler, text: str) -> Ids:
    """The ids of a prompt with this text; empty if it cannot be tokenized, or leaves no room for an answer.

    Texts of the policy may have characters without a token, such as the text of its special tokens.
    """
    try:
        context = sampler.prompt(text)
    except BadData:
        return ()
    return context if sampler.room(context) > 0 else ()


def best_of(samples: Sequence[Sample]) -> list[Sample]:
    """The samples with the highest score."""
    top = max(map(score_of, samples))
    return [s for s in samples if score_of(s) == top]
