"""`EarlyExits`: a sampling strategy of one answer, and copies of it that stop reasoning early."""

from dataclasses import dataclass
from typing import ClassVar

from groupwise.data import TEMPLATE, Draw, Finish, Rollout, Sampler, Strategy, verdicts_have
from groupwise.rollout.together import together
from groupwise.rollout.wording import AUTO, UNWORDED, Forms

__all__ = ["EarlyExits"]


@verdicts_have("exit")
@dataclass(frozen=True, slots=True)
class EarlyExits(Strategy):
    """One answer, and up to `draw.n - 1` copies, cut at random points of the reasoning, that answer at once. S-GRPO.

    The thought ends before the first `ends`; the text `inducer` follows each cut, untrained. Samples are in the order
    of their cuts, the whole answer last, and their part `exit` is the rank from 0. arXiv:2505.07686.
    """

    forms: ClassVar[dict[str, Forms]] = {
        "inducer": Forms(
            "#",
            "Time is limited, stop thinking and start answering.\n</think>\n\n",
            "arXiv:2505.07686, as others quote it",
        ),
        "ends": Forms("#", "</think>", "arXiv:2505.07686, as others quote it"),
    }

    inducer: str = AUTO
    ends: str = AUTO

    async def __call__(self, draw: Draw, sampler: Sampler) -> Rollout:
        assert AUTO not in (self.inducer, self.ends), UNWORDED
        (whole,) = await sampler.sample(draw.prompt.context, 1)
        at = whole.text.find(self.ends)
        thought = sum(end <= (len(whole.text) if at < 0 else at) for end in whole.ends)
        ids = sampler.ids(self.inducer, control=True)
        places = sorted(sampler.random(0).sample(range(1, thought + 1), min(draw.n - 1, thought)))
        forks = [whole.fork(place, i).insert(ids, TEMPLATE) for i, place in enumerate(places)]
        exits = await together(sampler.extend(s) for s in forks if len(s.tokens) < s.limit)
        answers = await sampler.verify([*exits, whole if whole.finish else whole.with_finish(Finish.length)])
        return Rollout(draw, tuple(s.add_parts({"exit": float(i)}) for i, s in enumerate(answers)))
