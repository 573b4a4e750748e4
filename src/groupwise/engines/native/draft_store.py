"""`DraftAndRefine`: a store of earlier generations, from which speculative decoding takes its proposed tokens."""

from collections import OrderedDict

from groupwise.data import ContextKey, GenerationRequest, Ids

PER_PROMPT = 16
"""The most drafts that are kept for one context."""


class DraftStore:
    """A store of generations by prompt, for speculative decoding. If full, it drops the least recently updated prompt.

    >>> drafts = DraftStore(8)
    >>> drafts.add(GenerationRequest(context=(1,), limit=4, draw_id=0, stream=(0,)), (5, 6, 7))
    >>> drafts.propose(GenerationRequest(context=(1,), limit=4, draw_id=9, stream=(2,)), (5,), 8)
    (6, 7)
    """

    def __init__(self, most: int) -> None:
        self.most, self.count = most, 0
        self._of: OrderedDict[ContextKey, dict[tuple[int, ...], Ids]] = OrderedDict()

    def add(self, request: GenerationRequest, tokens: Ids) -> None:
        """Store a generation as a draft. It replaces the earlier draft of the same sample."""
        if not tokens or not self.most:
            return
        drafts = self._of.setdefault(request.context_key, {})
        self._of.move_to_end(request.context_key)
        self.count -= len(drafts)
        drafts.pop(_sample(request), None)
        drafts[_sample(request)] = tokens
        if len(drafts) > PER_PROMPT:
            del drafts[next(iter(drafts))]
        self.count += len(drafts)
        while self.count > self.most:
            self.count -= len(self._of.popitem(last=False)[1])

    def propose(self, request: GenerationRequest, tokens: Ids, n: int) -> Ids:
        """Propose up to `n` next tokens, from a draft that begins with `tokens`: the same sample's, else the newest."""
        drafts = self._of.get(request.context_key, {})
        own = drafts.get(_sample(request), ())
        at = len(tokens)
        return next((d[at : at + n] for d in (own, *reversed(drafts.values())) if len(d) > at and d[:at] == tokens), ())


def _sample(request: GenerationRequest) -> tuple[int, ...]:
    """The key of a request's sample: purpose, draw, tokens generated before, and random stream."""
    return request.random_purpose, request.draw_id, request.already_generated_count, *request.stream
