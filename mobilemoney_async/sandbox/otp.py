"""One-time passwords for phones and password reset tokens: each is valid once, for a while, and only the newest."""

import hmac

import attrs


@attrs.frozen
class _Issued:
    secret: str = attrs.field(repr=False)
    expires_at: float


class OneTimeCodes:
    """The newest secret for each holder."""

    def __init__(self) -> None:
        self._issued: dict[str, _Issued] = {}

    def issue(self, holder: str, secret: str, *, expires_at: float) -> None:
        """Make this the holder's only valid secret, until `expires_at` (seconds since the sandbox's start)."""
        self._issued[holder] = _Issued(secret, expires_at)

    def redeem(self, holder: str, secret: str, *, now: float) -> bool:
        """Tell whether the secret is valid, and use it up if so."""
        issued = self._issued.get(holder)
        if issued is None or now >= issued.expires_at:
            return False
        if not hmac.compare_digest(issued.secret.encode(), secret.encode()):
            return False
        del self._issued[holder]
        return True

    def newest(self, holder: str) -> str:
        """Give the holder's secret, for the tests that play the phone or the mailbox.

        Raises:
            LookupError: None was issued, or it was used up.
        """
        if holder not in self._issued:
            raise LookupError("nothing was issued to this holder, or it was used up")
        return self._issued[holder].secret
