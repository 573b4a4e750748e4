"""A two-layer model with a 17-token vocabulary, and ragged rollouts for it."""

from collections.abc import Sequence

import torch

from groupwise.data import Draw, Finish, Outcome, Prompt, Rollout, Sample, Verdict
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
