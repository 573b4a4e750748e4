"""What a curriculum needs of the other fields of a method: its strategy, refill rounds, and stored log-probs."""

from groupwise.data import Curriculum, Strategy, name_of, with_fields


def check_curriculum(curriculum: Curriculum, strategy: Strategy, refill: int, proximal: str) -> None:
    """ValueError if a curriculum cannot work with these fields. It declares its needs as class variables.

    `needs_strategy` is the name of the strategy that reads its draws, `rounds` the sampling rounds of an iteration, and
    `replays_answers` is true if it draws stored answers.
    """
    name, needed = name_of(curriculum), getattr(curriculum, "needs_strategy", "")
    if needed and needed not in {type(part).__name__ for part in with_fields((strategy,))}:
        what = f"the curriculum {name} needs the strategy {needed}, and the strategy is {name_of(strategy)}"
        raise ValueError(f'{what}\nset method.strategy = "{needed}"')
    if (rounds := getattr(curriculum, "rounds", 1)) > refill + 1:
        what = f"the curriculum {name} needs {rounds} sampling rounds in an iteration, and refill is {refill}"
        raise ValueError(f"{what}\nset method.refill = {rounds - 1}")
    if getattr(curriculum, "replays_answers", False) and proximal != "sampled":
        what = f"the curriculum {name} draws stored answers, and their old log-probs would be recomputed"
        raise ValueError(f'{what}\nset method.proximal = "sampled"')
