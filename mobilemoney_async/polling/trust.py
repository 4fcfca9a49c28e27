"""How far the list is to be believed when it shows a payment as open. Pure.

The list may come from a copy that is behind (contract, section 4.4: its freshness is not shown). A final state is
believed wherever it is shown; that a payment is open may be old news. It shows when the payment has ended: by its own
timestamps it then had ended before the page showed it as open. So a page is taken to show how things were a while ago.
A list that shows no ending at all is checked by id.
"""

from __future__ import annotations

# Endings over which the delay of the list is averaged.
_MEMORY = 5
# Timestamps are compared with our own clock from the acknowledgement on: differences below this say nothing, seconds.
_NOISE = 2.0
_LONGEST = 600.0
# After so many pages that were likely to show an ending and did not, one payment is looked up, to see whether the list
# knows. A list that has shown an ending is doubted less soon.
_DOUBT = 3.0
_MOST_DOUBT = 12.0
# However unlikely an ending was, a page without one counts so much.
_LEAST = 0.15
# Of how many payments that no page had shown before the share that pages show is averaged.
_HITS = 20


class Trust:
    """What pages are worth, compared with lookups.

    Attributes:
        delay: By how much the list is behind, an estimate in seconds.
        hits: The share of payments that no page had shown before which a page shows where they are expected.
    """

    __slots__ = ("_bearable", "_ends", "_unshown", "delay", "hits")

    def __init__(self) -> None:
        self.delay: float = 0.0
        self.hits: float = 0.9
        self._ends = 0
        self._unshown = 0.0
        self._bearable = _DOUBT

    @property
    def is_fresh(self) -> bool:
        """Whether pages are as good as lookups, as far as is known."""
        return self.delay < _NOISE and self._bearable >= _DOUBT

    @property
    def wants_check(self) -> bool:
        """Whether to look one payment up that pages show as open."""
        return self._unshown >= self._bearable

    def saw_page(self, *, ended: int, expected: float) -> None:
        """Note how many payments a page showed to have ended, and how many could be expected to."""
        if ended:
            self._unshown, self._bearable = 0.0, _MOST_DOUBT
        else:
            self._unshown += min(1.0, max(_LEAST, expected))

    def saw_new(self, *, is_shown: bool) -> None:
        """Note whether a page showed a payment that no page had shown before."""
        self.hits += (is_shown - self.hits) / _HITS

    def saw_end(self, open_after: float) -> None:
        """Note that a payment was shown as open so many seconds after its end; less than 0 for before it."""
        late = min(_LONGEST, open_after) if open_after > _NOISE else 0.0
        self._ends = min(_MEMORY, self._ends + 1)
        self.delay += (late - self.delay) / self._ends

    def checked(self, *, has_ended: bool) -> None:
        """Note what the lookup of a payment showed that pages had shown as open: whether the next is worth it too."""
        if has_ended:
            self._bearable = _DOUBT / 2
        else:
            self._unshown, self._bearable = 0.0, max(self._bearable, _DOUBT)
