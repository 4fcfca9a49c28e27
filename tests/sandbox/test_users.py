"""Logins, tokens, permissions, one-time passwords, password resets and locks, through the pure engine."""

import base64
import json

import pytest

from mobilemoney_async.sandbox.behaviour import Choices
from tests.sandbox.service import ORDINARY, START, STUCK, Service

PROFILES = ("/user-service/profile", "/user-service/users/profile")
USER = {
    "id": 1,
    "email": "merchant@example.com",
    "first_name": "Asha",
    "last_name": "Mushi",
    "user_type": "Merchant",
    "kyc_status": "approved",
}


def test_a_login_gives_a_jwt_that_works_for_an_hour(service: Service) -> None:
    result = service.login().json
    token = result.pop("access_token")
    assert result == {"success": True, "token_type": "Bearer", "expires_in": 3600, "user": USER}
    payload = token.split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    assert claims["exp"] == START.timestamp() + 3600
    service.now = 3599.0
    assert service.send("GET", PROFILES[0], token=token).status == 200
    service.now = 3600.0
    assert service.send("GET", PROFILES[0], token=token).error == (401, "token_expired")


def test_speed_does_not_shorten_a_login() -> None:
    service = Service(speed=100.0)
    token = service.login().json["access_token"]
    service.now = 3599.0
    assert service.send("GET", PROFILES[0], token=token).status == 200


def test_an_issued_token_never_expires(service: Service) -> None:
    service.now = 1e8
    assert service.send("GET", PROFILES[0]).status == 200


@pytest.mark.parametrize("path", PROFILES)
def test_both_profiles_answer_alike(path: str) -> None:
    assert Service().send("GET", path).json == {"success": True, "user": {**USER, "merchant_id": "mer_0001"}}


@pytest.mark.parametrize("authorization", ["", "Bearer", "Bearer ", "Basic abc", "Bearer abc", "Bearer a.b.c"])
def test_a_foreign_token_is_invalid(authorization: str) -> None:
    answer = Service().send("GET", PROFILES[0], headers={"Authorization": authorization})
    assert answer.error == (401, "invalid_token")


def test_a_forged_token_is_invalid(service: Service) -> None:
    head, payload, signature = service.login().json["access_token"].split(".")
    claims = base64.urlsafe_b64encode(b'{"email":"merchant@example.com","exp":99999999999}').decode().rstrip("=")
    for forged in (f"{head}.{claims}.{signature}", f"{head}.{payload}.", f"{head}.{payload}.é", f"{head}.{payload}"):
        assert service.send("GET", PROFILES[0], token=forged).error == (401, "invalid_token")


@pytest.mark.parametrize("status", [400, 401])
def test_wrong_credentials(status: int) -> None:
    service = Service(choices=Choices(status_invalid_credentials=status))
    assert service.login(password="wrong").error == (status, "invalid_credentials")
    assert service.login(email="nobody@example.com").error == (status, "invalid_credentials")
    assert service.send("POST", "/user-service/login", {"email": "x"}).error == (400, "INVALID_REQUEST")


def test_too_many_wrong_logins_lock_the_account_for_a_while() -> None:
    service = Service(choices=Choices(failed_logins_before_lock=3, lock_seconds=100.0))
    for _ in range(2):
        service.login(password="wrong")
    assert service.login().status == 200
    for _ in range(3):
        assert service.login(password="wrong").error == (401, "invalid_credentials")
    service.now = 10.5
    locked = service.login()
    assert locked.error == (429, "RATE_LIMIT_EXCEEDED")
    assert locked.json["retry_after"] == 90
    service.now = 100.0
    assert service.login().status == 200


def test_permissions_of_issued_tokens(service: Service) -> None:
    body = {"phone_number": ORDINARY, "amount": "1"}
    read_only = service.engine.accounts.issue(service.account, ["read"])
    collecting = service.engine.accounts.issue(service.account, ["collect"])
    refused = (403, "insufficient_permissions")
    c2b, b2c, transactions = (f"/payment-service/{path}" for path in ("airtel/c2b", "airtel/b2c", "transactions"))
    assert service.send("POST", c2b, body, token=read_only).error == refused
    assert service.send("GET", transactions, token=read_only).status == 200
    assert service.send("POST", c2b, body, token=collecting).status == 200
    assert service.send("POST", b2c, body, token=collecting).error == refused
    assert service.send("GET", transactions, token=collecting).error == refused
    assert service.send("GET", PROFILES[0], token=collecting).status == 200
    with pytest.raises(ValueError, match="write"):
        service.engine.accounts.issue(service.account, ["write"])


def test_one_account_an_email() -> None:
    with pytest.raises(ValueError, match="already"):
        Service().engine.open_account("merchant@example.com")


def test_a_one_time_password_is_good_once_for_five_minutes(service: Service) -> None:
    ask = {"phone_number": ORDINARY, "purpose": "transaction_verification"}

    def verify(code: str) -> int:
        body = {"phone_number": ORDINARY, "otp_code": code}
        return service.send("POST", "/user-service/verify-otp", body).status

    assert verify("123456") == 400
    service.send("POST", "/user-service/request-otp", ask)
    code = service.engine.users.otps.newest(ORDINARY)
    assert len(code) == 6
    assert verify("wrong") == 400
    assert verify(code) == 200
    assert verify(code) == 400
    with pytest.raises(LookupError):
        service.engine.users.otps.newest(ORDINARY)
    service.send("POST", "/user-service/request-otp", ask)
    service.now = 300.0
    late = {"phone_number": ORDINARY, "otp_code": service.engine.users.otps.newest(ORDINARY)}
    assert service.send("POST", "/user-service/verify-otp", late).error == (400, "invalid_otp")


def test_one_time_password_requests_are_checked(service: Service) -> None:
    path = "/user-service/request-otp"
    assert service.send("POST", path, {"phone_number": ORDINARY}).error == (400, "INVALID_REQUEST")
    assert service.send("POST", path, {"phone_number": "x", "purpose": "y"}).error == (400, "INVALID_PHONE_NUMBER")
    assert service.send("POST", path, {}, token="none").error == (401, "invalid_token")


def test_a_forgotten_password_is_reset_by_the_token_from_the_mailbox() -> None:
    service = Service(choices=Choices(failed_logins_before_lock=1))
    old, email = service.account.password, service.account.email
    service.login(password="wrong")
    assert service.login().error == (429, "RATE_LIMIT_EXCEEDED")
    for somebody in (email, "nobody@example.com"):
        assert service.send("POST", "/user-service/forgot-password", {"email": somebody}, token="").status == 200
    token = service.engine.users.reset_tokens.newest(email)

    def reset(email: str, token: str) -> int:
        body = {"email": email, "reset_token": token, "new_password": "new"}
        return service.send("POST", "/user-service/reset-password", body, token="").status

    assert reset(email, "wrong") == 400
    assert reset("nobody@example.com", token) == 400
    assert reset(email, token) == 200
    assert reset(email, token) == 400
    assert service.login(password="new").status == 200
    assert service.login(password=old).error == (401, "invalid_credentials")


def test_each_merchant_has_a_limit_and_rejections_use_nothing_up() -> None:
    service = Service(choices=Choices())
    other = service.engine.open_account("other@example.com")
    for _ in range(9):
        assert service.collect(STUCK).status == 200
    assert service.login().status == 200  # counts too
    for _ in range(5):
        rejected = service.get("anything")
        assert rejected.error == (429, "RATE_LIMIT_EXCEEDED")
        assert rejected.json["retry_after"] == 1
    assert service.send("GET", PROFILES[0], token=other.token).status == 200
    assert service.send("GET", PROFILES[0], token="none").error == (401, "invalid_token")
    assert service.login(email="nobody@example.com").error == (401, "invalid_credentials")
    service.now = 1.0
    assert service.get("anything").error == (404, "TRANSACTION_NOT_FOUND")
    assert service.engine.requests.rejections == 5


def test_the_status_of_a_rejection_and_its_whole_seconds() -> None:
    service = Service(choices=Choices(rate_limit="fixed", status_rate_limit_exceeded=503))
    for _ in range(60):
        service.get("anything")
    service.now = 20.2
    rejected = service.get("anything")
    assert rejected.error == (503, "RATE_LIMIT_EXCEEDED")
    assert rejected.json["retry_after"] == 40
