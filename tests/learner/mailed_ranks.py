"""Ranks without processes: their messages wait in lists, and the bytes of each send are kept."""

from typing import Any

import torch.distributed as dist
from torch import Tensor

from groupwise.learner import ReplicatedRanks
from groupwise.learner.rank_pulse import RankPulse


class MailedRank(ReplicatedRanks):
    """A rank without a process. `mail` holds the messages on their way, and `sent` the bytes of its sends."""

    def __init__(self, rank: int, size: int, lanes: int, mail: dict[tuple[int, int], list[Tensor]], store: Any) -> None:
        self.rank, self.size, self.lanes, self.mail = rank, size, lanes, mail
        self.pulse, self.sent = RankPulse(store, rank, size, 9.0), list[int]()
        self._store, self._messages, self.patience, self.deadline = store, 0, 9.0, 9.0

    def send_to(self, rank: int, content: Tensor) -> None:
        self.sent.append(content.numel())
        self.mail.setdefault((self.rank, rank), []).append(content.clone())

    def receive_from(self, rank: int, size: int) -> Tensor:
        content = self.mail[rank, self.rank].pop(0)
        assert content.numel() == size
        return content


def mailed(size: int, lanes: int) -> list[MailedRank]:
    """Rank 0 and the others, which may receive in their order what rank 0 has sent."""
    mail, store = dict[tuple[int, int], list[Tensor]](), dist.HashStore()
    return [MailedRank(rank, size, lanes, mail, store) for rank in range(size)]
