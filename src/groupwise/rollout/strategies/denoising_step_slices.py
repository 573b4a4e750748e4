"""Some of the denoising steps of a sample alone, and steps without noise."""

from dataclasses import replace

from groupwise.data import Sample, Sampler, Sampling


def steps_from(sample: Sample, first: int) -> Sample:
    """A copy without the first `first` tokens, which another sample has too. Its prompt stays the same.

    A denoising step is trained from its own action, so it needs no steps before it. Steps that several samples share
    are then trained and counted once.

    >>> s = Sample(context=(5,), stream=(0,), tokens=(0, 1), origin=(0, 0), logp=(-0.5, -0.1))
    >>> s = replace(s, text="ab", token_ends=(1, 2))
    >>> rest = steps_from(s, 1)
    >>> rest.context, rest.tokens, rest.logp, rest.text, rest.token_ends
    ((5,), (1,), (-0.1,), 'b', (1,))
    """
    skipped = sample.token_ends[first - 1] if 0 < first <= len(sample.token_ends) else 0
    return replace(
        sample, tokens=sample.tokens[first:], origin=sample.origin[first:], logp=sample.logp[first:],
        actions=sample.actions[first:], text=sample.text[skipped:],
        token_ends=tuple(end - skipped for end in sample.token_ends[first:]),
    )  # fmt: skip


def without_noise(sampler: Sampler) -> Sampling:
    """The sampling of deterministic steps."""
    return replace(sampler.sampling, temperature=0.0)
