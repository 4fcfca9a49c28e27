"""Users: profiles, login, one-time passwords, forgotten passwords (contract, sections 4.5 and 5)."""

from __future__ import annotations

from typing import Any

import attrs

from mobilemoney_async.calls.pipeline import Pipeline
from mobilemoney_async.contract.endpoints import (
    FORGOT_PASSWORD,
    LOGIN,
    PROFILE,
    REQUEST_OTP,
    RESET_PASSWORD,
    USERS_PROFILE,
    VERIFY_OTP,
)
from mobilemoney_async.contract.models import LoginResult
from mobilemoney_async.values import Secret, conceal, hide, normalise_phone_number, require_secret, require_text


@attrs.define(eq=False, slots=False)
class Users:
    """User of the token.

    Private arguments are wrapped under their own names first, so that no traceback with locals shows them.

    The bodies of all answers but the login's are not documented: they are returned as the service gave them, an empty
    one as ``{}``. The calls of this class other than the profiles are not repeated once they may have been sent.

    Every method raises `InvalidRequest` for an invalid argument, with nothing sent; `APIError` or
    a subclass where the service refuses; `TransportError`, `UnexpectedResponse` or `ServerError` where it gives no
    usable answer. A call that is cancelled may have been processed.
    """

    _pipeline: Pipeline = attrs.field(repr=False)

    async def profile(self) -> dict[str, Any]:
        """Return the profile, which also checks that the token works (``GET /user-service/profile``)."""
        return await self._pipeline.call(PROFILE)

    async def users_profile(self) -> dict[str, Any]:
        """Return the profile by the contract's second path (``GET /user-service/users/profile``)."""
        return await self._pipeline.call(USERS_PROFILE)

    async def login(self, email: str, password: str | Secret) -> LoginResult:
        """Log in and return the result. The client's own token is not replaced; see `LoginAuth` for that.

        Login attempts are limited by the service; the threshold is not documented.

        Args:
            email: The e-mail address.
            password: The password.

        Raises:
            InvalidCredentials: Wrong e-mail or password.
        """
        password = conceal(password)
        body = {"email": require_text("email", email), "password": require_secret("password", password)}
        return await self._pipeline.call(LOGIN, body=body)

    async def request_otp(self, phone_number: str, purpose: str = "transaction_verification") -> dict[str, Any]:
        """Have a one-time password sent to a phone.

        Which operations need one is not documented.

        Args:
            phone_number: ``+`` and 8 to 15 digits; spaces and hyphens are dropped.
            purpose: The one value that the contract shows is the default.
        """
        phone_number = hide(phone_number)
        body = {"phone_number": normalise_phone_number(phone_number), "purpose": require_text("purpose", purpose)}
        return await self._pipeline.call(REQUEST_OTP, body=body)

    async def verify_otp(self, phone_number: str, otp_code: str | Secret) -> dict[str, Any]:
        """Verify a one-time password.

        Args:
            phone_number: The phone that it was sent to.
            otp_code: The code as text: as a number it would lose its leading zeros.
        """
        phone_number, otp_code = hide(phone_number), conceal(otp_code)
        body = {
            "phone_number": normalise_phone_number(phone_number),
            "otp_code": require_secret("otp_code", otp_code),
        }
        return await self._pipeline.call(VERIFY_OTP, body=body)

    async def forgot_password(self, email: str) -> dict[str, Any]:
        """Have a reset token sent by e-mail."""
        return await self._pipeline.call(FORGOT_PASSWORD, body={"email": require_text("email", email)})

    async def reset_password(self, email: str, reset_token: str | Secret, new_password: str | Secret) -> dict[str, Any]:
        """Set a new password with the reset token that the user got by e-mail."""
        reset_token, new_password = conceal(reset_token), conceal(new_password)
        body = {
            "email": require_text("email", email),
            "reset_token": require_secret("reset_token", reset_token),
            "new_password": require_secret("new_password", new_password),
        }
        return await self._pipeline.call(RESET_PASSWORD, body=body)
