"""Fixtures: a sandbox whose prompts wait, with a user of its page; the pure engine."""

import pytest

from mobilemoney_async.sandbox import Choices, Sandbox
from tests.sandbox.page_user import PageUser
from tests.sandbox.service import START, Service


@pytest.fixture
def sandbox() -> Sandbox:
    return Sandbox(now=START, by_hand=True, choices=Choices(rate_limit=None))


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def user(sandbox: Sandbox) -> PageUser:
    return PageUser(sandbox)
