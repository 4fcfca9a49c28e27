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
# Pages in a row without an ending after which one payment is looked up, to see whether the list knows.
_BARREN_PAGES = 20


class Trust:
    """What pages are worth, compared with lookups.

    Attributes:
        delay: By how much the list is behind, an estimate in seconds.
    """

    __slots__ = ("_barren", "delay")

    def __init__(self) -> None:
        self.delay: float = 0.0
        self._barren = 0

    @property
    def wants_check(self) -> bool:
        """Whether to look one payment up that pages show as open."""
        return self._barren >= _BARREN_PAGES

    def saw_page(self, *, ended: int) -> None:
        """Note how many payments a page showed to have ended."""
        self._barren = 0 if ended else self._barren + 1

    def saw_end(self, open_after: float) -> None:
        """Note that a payment was shown as open so many seconds after its end; less than 0 for before it."""
        late = min(_LONGEST, open_after) if open_after > _NOISE else 0.0
        self.delay += (late - self.delay) / _MEMORY

    def checked(self, *, has_ended: bool) -> None:
        """Note what the lookup of a payment showed that pages had shown as open: whether the next is worth it too."""
        if not has_ended:
            self._barren //= 2
