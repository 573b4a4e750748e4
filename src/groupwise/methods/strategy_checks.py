"""Checks that a method's fields fit its curriculum and strategy: sampling rounds, old log-probs, group size."""

from groupwise.data import Curriculum, Strategy, name_of, with_fields


def check_curriculum(curriculum: Curriculum, strategy: Strategy, max_refills: int, old_logprobs: str) -> None:
    """Raise ValueError if a curriculum requires another strategy, more sampling rounds or `old_logprobs = "engine"`.

    `required_strategy` is the name of the strategy that reads its draws, `rounds` the sampling rounds of an iteration,
    and `replays_answers` is true if it draws stored answers.
    """
    name, needed = name_of(curriculum), getattr(curriculum, "required_strategy", "")
    if needed and needed not in {type(part).__name__ for part in with_fields((strategy,))}:
        what = f"the curriculum {name} needs the strategy {needed}, and the strategy is {name_of(strategy)}"
        raise ValueError(f"{what}\nset method.strategy = {around(needed, strategy)}")
    if (rounds := getattr(curriculum, "rounds", 1)) > max_refills + 1:
        what = f"the curriculum {name} needs {rounds} sampling rounds in an iteration, and max_refills is {max_refills}"
        raise ValueError(f"{what}\nset method.max_refills = {rounds - 1}")
    if getattr(curriculum, "replays_answers", False) and old_logprobs != "engine":
        what = f"the curriculum {name} draws stored answers, and their old log-probs would be recomputed"
        raise ValueError(f'{what}\nset method.old_logprobs = "engine"')


def around(needed: str, strategy: Strategy) -> str:
    """The TOML of the strategy called `needed`, around this strategy unless that is its default.

    >>> from groupwise.rollout import Independent, Turns
    >>> around("PrefixContinuationStrategy", Independent()), around("PrefixContinuationStrategy", Turns())
    ('"PrefixContinuationStrategy"', '{ kind = "PrefixContinuationStrategy", inner_strategy = "Turns" }')
    """
    inner = name_of(strategy)
    return f'"{needed}"' if inner == "Independent" else f'{{ kind = "{needed}", inner_strategy = "{inner}" }}'


def check_group_size(group_size: int, *parts: Curriculum | Strategy) -> None:
    """Raise ValueError if `group_size` is below the `least_group_size` of a part, or is not its `exact_group_size`."""
    for part in parts:
        if group_size != (exact := getattr(part, "exact_group_size", group_size)):
            what = f"group_size is {group_size}, and {name_of(part)} writes {exact} for each prompt: {part}"
            raise ValueError(f"{what}\nset method.group_size = {exact}")
        if group_size < (least := getattr(part, "least_group_size", 1)):
            what = f"group_size is {group_size}, and {name_of(part)} needs at least {least}: {part}"
            raise ValueError(f"{what}\nset method.group_size = {least} or more")
