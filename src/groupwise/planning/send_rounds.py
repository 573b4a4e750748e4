"""The rounds in which weights reach the hosts of engines, when all connections of a round end at a time."""

from math import ceil

from groupwise.engines.remote.sending_turns import most_receivers

__all__ = ["send_rounds"]


def send_rounds(hosts: int) -> tuple[int, ...]:
    """The most hosts to which one sender sends in each round. After it, they send as well.

    >>> send_rounds(3), send_rounds(15)
    ((3,), (4, 1, 1))
    """
    senders, waiting, rounds = 1, hosts, []
    while waiting:
        under_way = 0
        while waiting and under_way // senders < most_receivers(senders, under_way, waiting):
            under_way, waiting = under_way + 1, waiting - 1
        rounds.append(ceil(under_way / senders))
        senders += under_way
    return tuple(rounds)
