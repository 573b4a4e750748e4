"""Roles: the kinds of samples that a sampling strategy makes beside answers."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["REQUESTS", "THREAD", "Role"]

REQUESTS = "requests"
"""The count of an agent's chat requests in a sample."""

THREAD = "thread"
"""The role of the further conversations of an agent's run: they get the advantage of the run's answer."""


@dataclass(frozen=True, slots=True)
class Role:
    """A kind of samples that a strategy makes beside answers, which `Method.trains` may name.

    `made_when` ends the sentence "it is made ...". `in_failed_rollouts` is whether its rollout has a correct answer:
    with `always` it has none, with `often` there may be one. A role that is `alone_in_group` is the only sample of its
    group, and `is_demonstration` if its tokens are training targets.

    >>> Role("hint", "where no answer is correct", in_failed_rollouts="often").name
    'hint'
    """

    name: str
    made_when: str
    in_failed_rollouts: Literal["never", "often", "always"] = "never"
    alone_in_group: bool = False
    is_demonstration: bool = False
