"""How far the list is to be believed when it shows a payment as open. Pure.

The list may come from a copy that is behind (contract, section 4.4: its freshness is not shown). A final state is
believed wherever it is shown; that a payment is open may be old news. It shows when the payment has ended: by its own
timestamps it then had ended before the page showed it as open. So a page is taken to show how things were a while ago.
A list that shows no ending at all is checked by id. New payments may be missing from it for a while of its own.
"""

from __future__ import annotations

# Endings over which the delay of the list is averaged.
_MEMORY = 5
# Timestamps are compared with our own clock from the acknowledgement on: differences below this say nothing, seconds.
_NOISE = 2.0
_LONGEST = 600.0
# Where a lookup finds an ending that the list did not show, it is four times as late as had been thought, or so late.
_NOT_LESS = 10.0
# While no page is asked for, seconds.
_HALF_LIFE = 600.0
# After so many pages that were likely to show an ending and did not, one payment is looked up, to see whether the list
# knows. A list that has shown an ending is doubted less soon.
_DOUBT = 3.0
_MOST_DOUBT = 12.0
# However unlikely an ending was, a page without one counts so much.
_LEAST = 0.15
# A payment that is missing is expected at so much more than its age.
_LATER = 1.5
# For so long at most a payment is taken to be missing because it is new, seconds.
_LONGEST_MISSING = 120.0
# Of how many payments that no page had shown before the share that pages show is averaged.
_HITS = 20


class Trust:
    """What pages are worth, compared with lookups.

    Attributes:
        missing: For how long a new payment is missing from the list, an estimate in seconds.
        hits: The share of older payments that no page had shown before which a page shows where they are expected.
    """

    __slots__ = ("_bearable", "_delay", "_ends", "_paged_at", "_unshown", "hits", "missing")

    def __init__(self) -> None:
        self.missing: float = 0.0
        self.hits: float = 0.9
        self._delay = 0.0
        self._paged_at = 0.0
        self._ends = 0
        self._unshown = 0.0
        self._bearable = _DOUBT

    @property
    def is_fresh(self) -> bool:
        """Whether pages are as good as lookups, as far as is known."""
        return self._delay < _NOISE and self._bearable >= _DOUBT

    def delay(self, now: float) -> float:
        """Return by how much the list is behind, an in seconds; it fades, so that a bad list is tried again."""
        return self._delay * 0.5 ** (max(0.0, now - self._paged_at) / _HALF_LIFE) if self._delay else 0.0

    @property
    def wants_check(self) -> bool:
        """Whether to look one payment up that pages show as open."""
        return self._unshown >= self._bearable

    def saw_page(self, asked_at: float, *, ended: int, expected: float) -> None:
        """Note how many payments a page showed to have ended, and how many could be expected to."""
        self._delay, self._paged_at = self.delay(asked_at), max(asked_at, self._paged_at)
        if ended:
            self._unshown, self._bearable = 0.0, _MOST_DOUBT
        else:
            self._unshown += min(1.0, max(_LEAST, expected))

    def saw_new(self, *, is_shown: bool) -> None:
        """Note whether a page showed a payment that no page had shown before."""
        self.hits += (is_shown - self.hits) / _HITS

    def saw_newest(self, *, shown: float, missing: float) -> None:
        """Note the ages of new payments that the newest page showed, or did not, seconds.

        Args:
            shown: Of the youngest that it showed, infinite if it showed none.
            missing: Of the oldest that it did not show and that is younger than that, 0 if there is none.
        """
        # What is missing at some age is not expected right afterwards, or pages would be asked for in vain until it is.
        least = 0.0 if not missing else min(_LONGEST_MISSING, shown, _LATER * (missing + 1))
        self.missing = max(min(self.missing, shown), least)

    def saw_end(self, open_after: float, shown_after: float) -> None:
        """Note how late pages were with an ending.

        Args:
            open_after: How long after it a page still showed the payment as open, seconds; less than 0 for before it.
            shown_after: How long after it a page showed it, infinite where a lookup did.
        """
        late = min(_LONGEST, open_after) if open_after > _NOISE else 0.0
        bound = max(self._delay, late) if shown_after >= self._delay else max(0.0, late, shown_after)
        self._ends = min(_MEMORY, self._ends + 1)
        self._delay += (bound - self._delay) / self._ends

    def checked(self, *, has_ended: bool, was_late: bool = False) -> None:
        """Note what the lookup of a payment showed that pages had shown as open: how soon the next is worth it.

        Args:
            has_ended: Whether it was final.
            was_late: Whether it was so already when a page last showed it as open. Otherwise its end says nothing.
        """
        was_doubted, self._unshown = self.wants_check, 0.0
        if not has_ended:
            self._bearable = max(self._bearable, _DOUBT)
        elif was_late:
            self._bearable = _DOUBT / 2
            if was_doubted:
                self._delay = min(_LONGEST, max(_NOT_LESS, 4 * self._delay))

    def is_late(self, open_at: float, ended_at: float | None, now: float) -> bool:
        """Return whether a payment had ended when a page showed it as open.

        Args:
            open_at: When that was.
            ended_at: When it ended, None where that is not known.
            now: When a lookup showed it, monotonic seconds as all of them.
        """
        return now - open_at < _NOISE if ended_at is None else open_at - ended_at > _NOISE
