"""A two-layer model with a 17-token vocabulary, and ragged rollouts for it."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from groupwise.data import Batch, Draw, Finish, Logp, Outcome, Prompt, Rollout, Sample, Verdict
from groupwise.learner import AuxiliaryLoss, Learner, RouterReplay, StepPlan
from groupwise.learner.microbatch_sums import MicrobatchSums
from groupwise.models import Decoder, DecoderShape

SHAPE = DecoderShape(
    vocabulary_size=17,
    hidden_size=16,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=8,
    mlp_width=24,
    qk_norm=True,
    tied_embeddings=True,
    max_positions=128,
)


def model(dtype: torch.dtype = torch.float64, seed: int = 0, shape: DecoderShape = SHAPE) -> Decoder:
    return Decoder.new(shape, seed).to(dtype)


def rollouts(
    lengths: list[list[int]],
    seed: int = 0,
    context: int = 5,
    limit: int = 40,
    written: bool = False,
    subscores: Sequence[str] = (),
) -> list[Rollout]:
    """One rollout per list of lengths; outcomes alternate, so every group of two or more is mixed."""
    draws = torch.Generator().manual_seed(seed)

    def ids(n: int) -> tuple[int, ...]:
        return tuple(torch.randint(0, 17, (n,), generator=draws).tolist())

    out = []
    for d, group in enumerate(lengths):
        prompt = Prompt(f"p{d}", ids(context + d % 3))
        samples = tuple(
            Sample(
                context=prompt.token_ids, stream=(i,), limit=limit, tokens=ids(n), origin=(-3 if written else 0,) * n,
                logp=tuple((-torch.rand(n, generator=draws)).tolist()), finish=Finish.stop,
                verdict=Verdict(
                    Outcome.correct if (i + d) % 2 else Outcome.wrong,
                    subscores=dict.fromkeys(subscores, (i + d) % 4 / 4),
                ),
            )
            for i, n in enumerate(group)
        )  # fmt: skip
        out.append(Rollout(Draw(d, prompt, len(group)), samples))
    return out


def ragged(seed: int = 0) -> list[Rollout]:
    """24 rows of lengths 1 to 40 in six groups, five of the rows without a token to train on."""
    draws = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 41, (24,), generator=draws)
    lengths[[1, 7, 8, 15, 22]] = 0
    return rollouts(lengths.view(6, 4).tolist(), seed)


class Totals(NamedTuple):
    """What a backward pass of a step computed: the batch with log-probs and measures, and the sums."""

    batch: Batch
    microbatch_sums: MicrobatchSums


def backward_pass(
    it: Learner, whole: Batch, step: StepPlan, objective: Any, replay: RouterReplay = "none",
    auxiliary: Sequence[AuxiliaryLoss] = (),
) -> Totals:  # fmt: skip
    """Accumulate the gradients of a step's prepared batch, without taking the step."""
    measures, _, sums = it._backward(it._share(whole, step, replay, auxiliary), objective, replay, auxiliary)
    logp = measures.pop(Logp("policy"))
    old = whole.logp_old if whole.logp_old is not None else logp
    return Totals(whole.having(logp=logp, logp_old=old, measures=measures), sums)
