"""Fixtures for tests of phones and of their page: a sandbox whose prompts wait, and a user of its page."""

import pytest

from mobilemoney_async.sandbox import Choices, Sandbox
from tests.sandbox.page_user import PageUser
from tests.sandbox.service import START


@pytest.fixture
def sandbox() -> Sandbox:
    return Sandbox(now=START, by_hand=True, choices=Choices(rate_limit=None))


@pytest.fixture
def user(sandbox: Sandbox) -> PageUser:
    return PageUser(sandbox)
