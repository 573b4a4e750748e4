"""The environment `coin_flip`: the model guesses a coin, reads whether it was right, and may go on talking."""

from random import Random

from groupwise.data import Observation, Outcome, Prompt, Verdict

__all__ = ["CoinFlip"]

SIDES = "ht"


class CoinFlip:
    """One conversation: the first message is the guess `h` or `t`, the second is worth nothing, whatever it says.

    The side is random, so no policy can be right more often than half of the time. Only what it says afterwards, and
    how long it talks, can change with training. Any other guess is wrong.
    """

    def __init__(self) -> None:
        self.side, self.outcome = "", Outcome.wrong
        self.guessed = False

    async def reset(self, prompt: Prompt, random: Random) -> Observation:
        self.side = random.choice(SIDES)
        return None

    async def step(self, message: str, /) -> Observation:
        if self.guessed:
            return Verdict(self.outcome)
        self.guessed, self.outcome = True, Outcome(message == self.side)
        return f"{self.outcome.name}\n".replace("correct", "right")
