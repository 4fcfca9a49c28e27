"""User and authentication endpoints (`contract.md` section 4.5), one-time passwords (OTP) included."""

import hmac
import math
import random

from mobilemoney_async.sandbox.accounts import TOKEN_LIFETIME, Accounts
from mobilemoney_async.sandbox.endpoints import Call
from mobilemoney_async.sandbox.faults import rate_limit_reply
from mobilemoney_async.sandbox.messages import Reply, answer, auth_error
from mobilemoney_async.sandbox.payments import TransactionBook


class UserService:
    """Handlers of the user endpoints; the book converts seconds into dates."""

    def __init__(self, accounts: Accounts, book: TransactionBook, dice: random.Random) -> None:
        self.otps: OneTimeCodes = OneTimeCodes()
        self.reset_tokens: OneTimeCodes = OneTimeCodes()
        self._accounts = accounts
        self._book = book
        self._dice = dice

    def profile(self, call: Call) -> Reply:
        """GET /user-service/profile and /user-service/users/profile: the same answer."""
        return answer(success=True, user={**call.owner.user(), "merchant_id": call.owner.merchant_id})

    def log_in(self, call: Call) -> Reply:
        """POST /user-service/login; RATE_LIMIT_EXCEEDED while the account is locked."""
        email, password = call.text("email", auth_error), call.text("password", auth_error)
        account = self._accounts.find(email)
        if account is None:
            return _invalid_credentials(call)
        if call.unscaled_now < account.locked_until:
            # The contract limits login attempts without saying how; its only documented code for a limit is this one.
            return rate_limit_reply(call.choices, max(1, math.ceil(account.locked_until - call.unscaled_now)))
        if not hmac.compare_digest(account.password.encode(), password.encode()):
            account.failed_logins += 1
            if account.failed_logins == call.choices.failed_logins_before_lock:
                account.failed_logins = 0
                account.locked_until = call.unscaled_now + call.choices.lock_seconds
            return _invalid_credentials(call)
        account.failed_logins = 0
        return answer(
            success=True,
            access_token=self._accounts.log_in(account, self._book.datetime_at(call.now)),
            token_type="Bearer",  # noqa: S106 - no password
            expires_in=TOKEN_LIFETIME,
            user=account.user(),
        )

    def request_otp(self, call: Call) -> Reply:
        """POST /user-service/request-otp: replaces the phone's earlier code."""
        phone_number = call.phone_number(auth_error)
        call.text("purpose", auth_error)
        code = f"{self._dice.randrange(10**6):06d}"
        self.otps.issue(phone_number, code, expires_at=call.now + call.choices.otp_lifetime)
        return answer(success=True, message="One-time password sent")

    def verify_otp(self, call: Call) -> Reply:
        """POST /user-service/verify-otp: a code is good once."""
        phone_number, code = call.phone_number(auth_error), call.text("otp_code", auth_error)
        if not self.otps.redeem(phone_number, code, now=call.now):
            return auth_error(400, "invalid_otp", "The one-time password is wrong or has expired")
        return answer(success=True, message="One-time password verified")

    def forgot_password(self, call: Call) -> Reply:
        """POST /user-service/forgot-password: the answer is the same without such an account."""
        email = call.text("email", auth_error)
        if self._accounts.find(email) is not None:
            expires_at = call.now + call.choices.reset_token_lifetime
            self.reset_tokens.issue(email, self._accounts.secret("rst"), expires_at=expires_at)
        return answer(success=True, message="If there is such an account, a reset token was sent to it")

    def reset_password(self, call: Call) -> Reply:
        """POST /user-service/reset-password: a reset token is good once; access tokens stay valid."""
        email, token = call.text("email", auth_error), call.text("reset_token", auth_error)
        new_password = call.text("new_password", auth_error)
        account = self._accounts.find(email)
        if account is None or not self.reset_tokens.redeem(email, token, now=call.now):
            return auth_error(400, "invalid_reset_token", "The reset token is wrong or has expired")
        account.password = new_password
        account.failed_logins, account.locked_until = 0, 0.0
        return answer(success=True, message="Password changed")


def _invalid_credentials(call: Call) -> Reply:
    status = call.choices.status_invalid_credentials
    return auth_error(status, "invalid_credentials", "Wrong e-mail or password")


class OneTimeCodes:
    """One-time secrets, OTPs and reset tokens: the newest of each holder, valid once and for a while."""

    def __init__(self) -> None:
        # By holder: the secret, and when it expires.
        self._issued: dict[str, tuple[str, float]] = {}

    def issue(self, holder: str, secret: str, *, expires_at: float) -> None:
        """Make this the holder's only valid secret, until `expires_at` (seconds since the sandbox's start)."""
        self._issued[holder] = (secret, expires_at)

    def redeem(self, holder: str, secret: str, *, now: float) -> bool:
        """Use a secret up; return whether it was valid."""
        valid, expires_at = self._issued.get(holder, ("", now))
        if now >= expires_at or not hmac.compare_digest(valid.encode(), secret.encode()):
            return False
        del self._issued[holder]
        return True

    def holders(self) -> tuple[str, ...]:
        """Return all users with a secret, the first one first."""
        return tuple(self._issued)

    def find(self, holder: str) -> str | None:
        """Return the holder's secret, or None."""
        return self._issued.get(holder, (None,))[0]

    def newest(self, holder: str) -> str:
        """Return the holder's secret; see `Sandbox.last_otp`."""
        secret = self.find(holder)
        if secret is None:
            raise LookupError("nothing was issued to this holder, or it was used up")
        return secret
