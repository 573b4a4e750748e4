"""An environment of verifiers, as its authors write one: tasks with a prompt, and a reward of the episode's trace."""

import verifiers.v1 as vf

__all__ = ["SumsTaskset"]


class SumsData(vf.TaskData):
    """A sum and its value."""

    answer: str


class SumsTask(vf.Task[SumsData]):
    """The reward is 1 if the last answer contains the value."""

    @vf.reward(weight=1.0)
    async def right(self, trace: vf.Trace) -> float:
        return float(self.data.answer in (trace.last_reply or ""))


class SumsTaskset(vf.Taskset[SumsTask, vf.TasksetConfig]):
    """Sums of two digits."""

    def load(self) -> list[SumsTask]:
        pairs = [(a, b) for a in range(1, 10) for b in range(1, 10)]
        return [SumsTask(SumsData(prompt=f"What is {a} + {b}?", answer=str(a + b)), self.config.task) for a, b in pairs]
