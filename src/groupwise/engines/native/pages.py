"""Pages of the key-value cache on a GPU: which sequence holds which page, and which pages later sequences reuse."""

from bisect import bisect, insort
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from groupwise.data import ContextKey, Ids

PAGE = 256
"""Positions of a page: FlashAttention 2 takes multiples of 256."""


def pages_for(positions: int) -> int:
    """The number of pages for this many positions.

    >>> pages_for(0), pages_for(256), pages_for(257)
    (0, 1, 2)
    """
    return -(-positions // PAGE)


@dataclass(eq=False, slots=True)
class Page:
    """One page. A cached page holds the keys and values of `tokens`, after those of its `parent`."""

    index: int
    reference_count: int = 0
    """The running sequences that hold it."""
    tokens: Ids = ()
    parent: "Page | None" = None
    children: dict[Ids, "Page"] = field(default_factory=dict)
    sorted_children: list[Ids] = field(default_factory=list)
    """The keys of `children`, sorted: the longest common beginning with a text is that of a neighbour."""


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """The cached beginning of a text: whole pages, which are shared, and `partial_tokens` of one more, to be copied."""

    whole_pages: tuple[Page, ...]
    partial_page: Page | None
    partial_tokens: int

    @property
    def tokens(self) -> int:
        return len(self.whole_pages) * PAGE + self.partial_tokens


class PagePool:
    """At most `most` pages, in a tree of cached texts. Page 0 is padding. Evicts the least recently used leaf first.

    >>> pages = PagePool(4)
    >>> held = pages.take(2)
    >>> pages.store(("", tuple(range(300))), held)
    >>> pages.match(("", tuple(range(290)))).tokens
    290
    """

    def __init__(self, most: int) -> None:
        self.most, self.held = most, 0
        """The bound, and the number of pages that running sequences hold."""
        self._free: list[int] = []
        self._created = 0
        self._roots: dict[str, Page] = {}
        self._cached: OrderedDict[int, Page] = OrderedDict()

    @property
    def highest(self) -> int:
        """The largest index of a page so far."""
        return self._created

    def match(self, text: ContextKey) -> PrefixMatch:
        """The longest cached beginning of a text."""
        content, ids = text
        node, whole = self._roots.setdefault(content, Page(0)), list[Page]()
        while (child := node.children.get(ids[len(whole) * PAGE : (len(whole) + 1) * PAGE])) and len(
            child.tokens
        ) == PAGE:
            whole.append(child)
            self._cached.move_to_end(child.index)
            node = child
        rest = ids[len(whole) * PAGE :]
        at = bisect(node.sorted_children, rest)
        near = [(common(key, rest), key) for key in node.sorted_children[max(at - 1, 0) : at + 1]]
        count, key = max(near, default=(0, ()))
        if not count:
            return PrefixMatch(tuple(whole), None, 0)
        self._cached.move_to_end(node.children[key].index)
        return PrefixMatch(tuple(whole), node.children[key], count)

    def hold(self, pages: Iterable[Page]) -> None:
        """Count a running sequence that holds these pages."""
        for page in pages:
            self.held += page.reference_count == 0
            page.reference_count += 1

    def take(self, n: int) -> list[Page]:
        """`n` pages without contents, held by one sequence. The caller has checked that `most` allows them."""
        pages = [Page(self._index()) for _ in range(n)]
        self.hold(pages)
        return pages

    def release(self, pages: Iterable[Page]) -> None:
        """Uncount a sequence. Pages that are not cached become free."""
        for page in pages:
            page.reference_count -= 1
            self.held -= page.reference_count == 0
            if page.reference_count == 0 and page.index not in self._cached:
                self._free.append(page.index)

    def store(self, text: ContextKey, pages: Sequence[Page]) -> None:
        """Cache the pages of a text, which a sequence holds. Texts that are cached already keep their pages."""
        content, ids = text
        node = self._roots.setdefault(content, Page(0))
        for page, first in zip(pages, range(0, len(ids), PAGE)):
            key = ids[first : first + PAGE]
            if (child := node.children.get(key)) is None:
                if page.index in self._cached:
                    return  # it is cached under another text
                child, page.tokens, page.parent = page, key, node
                node.children[key] = page
                insort(node.sorted_children, key)
                self._cached[page.index] = page
            node = child

    def clear(self) -> None:
        """Drop all cached texts; running sequences keep their pages."""
        for page in self._cached.values():
            if page.reference_count == 0:
                self._free.append(page.index)
            page.tokens, page.parent, page.children, page.sorted_children = (), None, {}, []
        self._cached.clear()
        self._roots.clear()

    def _index(self) -> int:
        if not self._free and self._created >= self.most:
            self._evict()
        if self._free:
            return self._free.pop()
        self._created += 1
        return self._created

    def _evict(self) -> None:
        """Free the least recently used page that no sequence holds and no cached page continues."""
        page = next(page for page in self._cached.values() if not page.reference_count and not page.children)
        assert page.parent is not None
        del page.parent.children[page.tokens]
        page.parent.sorted_children.remove(page.tokens)
        del self._cached[page.index]
        self._free.append(page.index)


def common(a: Ids, b: Ids) -> int:
    """The length of the longest common beginning.

    >>> common((1, 2, 3), (1, 2, 4, 5)), common((), (1,))
    (2, 0)
    """
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if a[low:middle] == b[low:middle] else (low, middle - 1)
    return low
