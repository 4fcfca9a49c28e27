"""Secrets in foreign texts, by their shape; and the causes of errors, which stay."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mobilemoney_async.redaction import names_secret
from mobilemoney_async.text import redact

NAMES = [
    *(
        "password",
        "passwd",
        "pwd",
        "passphrase",
        "token",
        "secret",
        "otp",
        "pin",
        "session",
        "cookie",
        "bearer",
        "auth",
    ),
    *("authorization", "credential", "signature", "jwt", "csrf", "api_key", "api-key", "apikey", "secret key", "sid"),
    *("nenosiri", "neno la siri", "namba ya siri", "nywila", "ufunguo", "msimbo"),
]
WRITTEN = [
    *(lambda name: name, str.upper, str.capitalize, lambda name: f"x-{name}", lambda name: f"new_{name}"),
    *(lambda name: f"{name}_id", lambda name: f"{name.replace(' ', '_')}Value", lambda name: f'"{name}"'),
]
SIGNS = ["=", ":", ": ", " = ", " => ", ":  '", ': "']
values = st.text("abcdefghijkmnopqrstuvwxyzABCDEF0123456789-._~+/", min_size=4, max_size=20)


@given(
    st.sampled_from(NAMES), st.sampled_from(WRITTEN), st.sampled_from(SIGNS), values, st.sampled_from(["", " is bad"])
)
def test_the_value_of_a_field_that_names_a_secret_is_hidden(
    name: str, write: object, sign: str, value: str, after: str
) -> None:
    """However the field is written, in English and in Swahili, whatever its value is."""
    assert callable(write)
    value = f"q7{value}"
    end = sign[-1] if sign[-1] in "'\"" else ""
    shown = redact(f"refused: {write(name)}{sign}{value}{end}{after}, try again")
    assert value not in shown
    assert shown.startswith("refused: ") and shown.endswith("try again")


odd = st.from_regex(
    r"[a-z]{2,6}[0-9][a-z]{2,6}|[a-z]{3,8}[-._][a-z]{3,8}|[a-z]{3,6}[A-Z][a-z]{3,6}|[0-9]{4,8}", fullmatch=True
)


@pytest.mark.slow
@given(st.sampled_from(NAMES), st.sampled_from([" ", " is ", " was ", " ni "]), odd)
def test_a_value_that_reads_like_none_is_hidden_behind_the_word_alone(name: str, between: str, value: str) -> None:
    """`token abcd-efgh` needs no sign; a plain word after it is the text of an error."""
    assume(not any(part in value.casefold() for part in ("re", "in", "up", "out", "on", "not", "time")))
    assert value not in redact(f"the {name}{between}{value} was refused")


@pytest.mark.slow
@given(st.sampled_from(["Bearer", "bearer", "Basic"]), st.from_regex(r"[a-z]{5,9}(\.[a-z]{2,5})?", fullmatch=True))
def test_what_follows_the_name_of_a_scheme_is_hidden(scheme: str, value: str) -> None:
    assume(value in redact(f"the scheme {value} is known"))
    assert value not in redact(f"got {scheme} {value}x").split()


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("Cookie: sid=abc; theme=dark; Secure and more", "Cookie: [redacted] and more"),
        ("Set-Cookie: JSESSIONID=AB12; HttpOnly", "Set-Cookie: [redacted]"),
        ("JSESSIONID=AB12", "JSESSIONID=[redacted]"),
        ("see https://pay.example/reset/abcdef for it", "see https://pay.example/reset/… for it"),
        (r"see https:\/\/pay.example\/r\/9f8a7b", "see https://pay.example/r/…"),
        ("https://pay.example/docs/errors?id=5", "https://pay.example/docs/errors?…"),
        ("pay.tz/verify-me/abcdef", "pay.tz/verify-me/[redacted]"),
        ("postgresql://shop:pw@db:5432/x", "postgresql://db:5432/x"),
        ("otp 49 38", "otp [redacted]"),
        ("namba ya siri ni 9911", "namba ya siri ni [redacted]"),
        ("password: password", "password: [redacted]"),
        ("key=abc", "key=[redacted]"),
    ],
)
def test_other_shapes_of_secrets(said: str, shown: str) -> None:
    """Cookies, links that anybody may follow, numbers in groups."""
    assert redact(said) == shown


@pytest.mark.parametrize(
    "said",
    [
        "token: expired",
        "token is expired",
        "the session has timed out",
        "password: required",
        '{"password":["This field may not be blank."]}',
        '{"pin":"must have 4 digits"}',
        "Nenosiri: si sahihi",
        "tokeni imeisha muda",
        "csrf token missing or incorrect",
        "Bearer token required",
        'WWW-Authenticate: Bearer error="invalid_token"',
        "code: TOKEN_EXPIRED",
        "error: invalid_token",
        "POST /auth/login failed",
        "https://docs.example/errors/token",
        "author: Jane, opinion: good, secretary: Ann, desktop: x",
        "idempotency key order-9 was used",
        "the OTP expires in 300 seconds",
        "account locked: too many attempts",
        "insufficient balance, reference: REF-1",
    ],
)
def test_the_cause_of_an_error_stays(said: str) -> None:
    """An operator reads what is wrong: words that name no secret, and words that are no value."""
    assert redact(said) == said


@pytest.mark.parametrize(
    "name", ["x-api-key", "X-Auth-Token", "cookie", "Authorization", "x-hub-signature-256", "apikey"]
)
def test_headers_that_hold_a_secret(name: str) -> None:
    assert names_secret(name)
    assert not any(map(names_secret, ["accept", "content-type", "user-agent", "x-request-id", "author", "host"]))
