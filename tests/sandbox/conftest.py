"""What tests of phones and of their page share: a sandbox whose customers wait for a person, and that person."""

import pytest

from mobilemoney_async.sandbox import Choices, Sandbox
from tests.sandbox.desk import START
from tests.sandbox.person import Person


@pytest.fixture
def sandbox() -> Sandbox:
    return Sandbox(now=START, by_hand=True, choices=Choices(rate_limit=None))


@pytest.fixture
def person(sandbox: Sandbox) -> Person:
    return Person(sandbox)
