"""Co-GRPO: a masked diffusion model and the schedule that unmasks it learn from the same trajectories."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from groupwise.advantages import Standardised
from groupwise.data import (
    Aggregate,
    Batch,
    Draw,
    EqualWeightUnit,
    Mask,
    Penalty,
    Role,
    Rollout,
    Sample,
    Sampler,
    Segments,
    Strategy,
)
from groupwise.learner import InitialPolicy
from groupwise.methods.method import Method
from groupwise.methods.reference import ExpectedEffect, PaperDifference, PaperReference
from groupwise.methods.schedules import CyclicValues
from groupwise.models import DrawnKnobs, UnmaskingSettings, decode_masked
from groupwise.objective import KL, Clip, GatedSurrogate, Objective

__all__ = [
    "SCHEDULE",
    "AlternatingRoleMask",
    "AnswerAndScheduleStrategy",
    "PenaltyOfRole",
    "SampleRoleMask",
    "co_grpo",
    "role_mean",
]


@dataclass(frozen=True, slots=True)
class RoleMeanAggregate(Aggregate):
    """The sum over roles of `sequence_mean` within the role: live sequences of a role weigh the same.

    With samples of a single role it is `sequence_mean`. Co-GRPO, arXiv:2512.22288: the losses of tokens and schedule.
    """

    name: ClassVar[str] = "role_mean"
    equal_weight_unit: ClassVar[EqualWeightUnit] = "sequences"

    def __call__(self, step: Batch) -> Float[Tensor, " n"]:
        s, roles = step.sequences, by_role(step)
        live = roles.spread(roles.total((s.lengths > 0).to(step.advantage)))
        return s.spread(1 / s.size(step.advantage).clamp(min=1) / live.clamp(min=1))


def by_role(step: Batch) -> Segments:
    """The samples of a step in segments: one for each role, in alphabetical order."""
    names = sorted({sample.role for sample in step.samples})
    index = [names.index(sample.role) for sample in step.samples]
    return Segments(torch.tensor(index, dtype=torch.long, device=step.index_in_sample.device), len(names))


role_mean = RoleMeanAggregate()


def of_role(b: Batch, role: str) -> Bool[Tensor, " n"]:
    """For each token, whether its sample has the role."""
    has = torch.tensor([s.role == role for s in b.samples], dtype=torch.bool, device=b.index_in_sample.device)
    return b.sequences.spread(has)


@dataclass(frozen=True, slots=True)
class SampleRoleMask(Mask):
    """Selects the tokens of samples with this role."""

    role: str

    def __call__(self, b: Batch) -> Bool[Tensor, " n"]:
        return of_role(b, self.role)


@dataclass(frozen=True, slots=True)
class AlternatingRoleMask(Mask):
    """Selects the tokens of the role `alternating_sample_roles[active_role_index]`; a schedule moves the index.

    So the roles take turns. Weights that only other roles read get no gradient, and AdamW leaves such weights as they
    are, to the bit.
    """

    alternating_sample_roles: tuple[str, ...]
    active_role_index: float = 0.0

    def __post_init__(self) -> None:
        if not self.alternating_sample_roles or not 0 <= self.active_role_index < len(self.alternating_sample_roles):
            raise ValueError(f"{self}\nneeds one or more roles, and active_role_index from 0 to below their number")

    def __call__(self, b: Batch) -> Bool[Tensor, " n"]:
        return of_role(b, self.alternating_sample_roles[int(self.active_role_index)])


@dataclass(frozen=True, slots=True)
class PenaltyOfRole(Penalty):
    """The `penalty` for tokens of samples with this role, and 0 for all others. It must be finite everywhere."""

    role: str = "answer"
    penalty: Penalty = KL(0.01)  # noqa: RUF009

    def __call__(self, b: Batch) -> Float[Tensor, " n"]:
        return torch.where(of_role(b, self.role), self.penalty(b), 0.0)


SCHEDULE = "schedule"
"""The role of the samples with the knobs of an answer's steps."""


@dataclass(frozen=True, slots=True)
class AnswerAndScheduleStrategy(Strategy):
    """`draw.n` answers of a masked policy, each split into two samples with one verdict. Co-GRPO, arXiv:2512.22288.

    The commits and the text stay in the answer. The knobs become a sample of the role `schedule`, so the knobs of a
    group are compared with each other, and get the advantages of their answers. A fixed schedule has no knobs.
    """

    works_on_whole_answers: ClassVar[bool] = True
    roles: ClassVar[tuple[Role, ...]] = (Role(SCHEDULE, "where the schedule of the masked policy has knobs"),)

    async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout:
        answers = await sampler.verify(await sampler.sample(draw.prompt.token_ids, draw.n))
        knobs = [[is_knobs(sample, i) for i in range(len(sample.tokens))] for sample in answers]
        commits = [chosen(sample, [not knob for knob in row]) for sample, row in zip(answers, knobs)]
        schedules = [
            replace(chosen(sample, row), role=SCHEDULE, parent=i, stream=(*sample.stream, 0), text="", token_ends=())
            for i, (sample, row) in enumerate(zip(answers, knobs))
            if any(row)
        ]
        return Rollout(draw, (*commits, *schedules))


def is_knobs(sample: Sample, i: int) -> bool:
    """Whether a token of a sample is the knobs of a step."""
    return i < len(sample.actions) and isinstance(decode_masked(sample.actions[i]), DrawnKnobs)


def chosen(sample: Sample, which: Sequence[bool]) -> Sample:
    """The sample with these tokens alone. The others decode to no text."""
    per_token = {
        name: tuple(compress(getattr(sample, name), which)) for name in ("tokens", "origin", "logp", "token_ends")
    }
    return replace(sample, **per_token, actions=tuple(compress(sample.actions, which)), token_marks={}, top_logprobs=())


TURNS = AlternatingRoleMask((SCHEDULE, "answer"))


def co_grpo(
    *,
    group_size: int = 8,
    steps: int = 4,
    spread: float = 0.3,
    clip: float = 0.2,
    kl: float = 0.01,
    form: Literal["joint", "alternating"] = "joint",
) -> Method:
    """One z-score per trajectory, for its committed tokens and for the knobs of its schedule; PPO's clip for both.

    A masked diffusion model is trained on random masks but used with a schedule that is fixed by hand, so the two do
    not match. Co-GRPO also makes the knobs of the schedule actions, and trains tokens and knobs with the reward of
    their shared trajectory. The formulas and numbers are our reading.

    Args:
        group_size: answers per prompt.
        steps: largest number of unmasking steps.
        spread: standard deviation of the knobs at the start, at least 0; 0 fixes the schedule.
        clip: distance of both clip bounds from 1, for tokens and knobs, e.
        kl: weight of the KL penalty of the tokens to the initial policy, beta.
        form: `joint` trains tokens and knobs together; `alternating` trains one of them per iteration.
    """
    clips = GatedSurrogate(SampleRoleMask(SCHEDULE), Clip(clip, clip), Clip(clip, clip))
    turns = form == "alternating"
    return Method(
        group_size=group_size,
        unmask=UnmaskingSettings(steps=steps, knob_std=spread),
        strategy=AnswerAndScheduleStrategy(),
        trained_roles=("answer", SCHEDULE),
        advantage=(Standardised(ddof=0, eps=1e-4),),
        mask=(TURNS,) if turns else (),
        schedules=(("mask.0.active_role_index", CyclicValues((0.0, 1.0))),) if turns else (),
        models=(("reference", InitialPolicy()),),
        objective=Objective(surrogate=clips, penalties=(PenaltyOfRole("answer", KL(kl)),), aggregate=role_mean),
    )


REFERENCE = PaperReference(
    paper="Co-GRPO: Co-Optimized Group Relative Policy Optimization for Masked Diffusion Model",
    arxiv="2512.22288",
    evidence="our reading",
    parent="grpo",
    formula="""\
A_i = (R_i - mean) / (std + 1e-4), std with ddof 0: one number per trajectory, for both streams
L_V = -mean over i of mean over commits of min(rho A, clip(rho, 1 - e, 1 + e) A) + beta KL(pi || reference)
L_A = -mean over i of mean over steps of min(rho A, clip(rho, 1 - e, 1 + e) A)
rho of a commit: softmax(logits / tau) of the cell before the step; rho of a step: Gaussians of its knobs
joint: L_V + L_A;  alternating: L_A, then L_V""",
    differences=(
        PaperDifference(
            "formulas", "only the MDP, both streams and the shared reward were readable", "none", "inferred"
        ),
        PaperDifference("knobs of a step", "temperature, share masked again", "not obtained", "the same (inferred)"),
        PaperDifference(
            "kept cells", "the most confident", "not obtained", "by probability at temperature 1, also earlier commits"
        ),
        PaperDifference("group size, steps", "not readable", "not obtained", "8 and 4 (inferred)"),
        PaperDifference("deviation of the knobs at the start", "not readable", "not obtained", "0.3 (inferred)"),
        PaperDifference("clip ranges, KL", "not readable", "not obtained", "0.2 for both, 0.01 for tokens (inferred)"),
        PaperDifference(
            "learning rates", "not readable", "not obtained", "one; the schedule's numbers move 20 times as fast"
        ),
        PaperDifference(
            "gradient clipping",
            "not readable",
            "not obtained",
            "one norm, mostly the schedule's: it scales both losses",
        ),
        PaperDifference(
            "form", "alternating", "not obtained", 'joint, or form = "alternating" with turns of an iteration'
        ),
        PaperDifference(
            "model", "text to image", "text to image", "any masked model of this package: cells and symbols"
        ),
    ),
    proof_tests=(
        "tests/golden/test_flow_co_grpo.py::test_worked_numbers",
        "tests/golden/test_flow_co_grpo.py::test_whole_path",
        "tests/golden/test_flow_co_grpo.py::test_a_fixed_schedule_is_grpo_on_tokens",
        "tests/golden/test_flow_co_grpo.py::test_the_alternating_form_leaves_one_of_both_as_it_is",
        "tests/golden/test_flow_co_grpo.py::test_no_gradient_between_tokens_and_schedule",
        "tests/golden/test_flow_co_grpo.py::test_the_score_of_the_schedule_has_mean_zero",
    ),
    expected_effect=ExpectedEffect(
        metric="eval/accuracy",
        direction="up",
        task="beads",
        parent="co_grpo",
        min_difference=0.03,
        runs_matched_by="iterations",
        settings=(
            "method.unmask.knob_std = 0.0",
            "method.group_size = 16",
            "method.minibatches = 2",
            "iterations = 15",
        ),
        own_settings=("method.unmask.knob_std = 0.3",),
    ),
)
