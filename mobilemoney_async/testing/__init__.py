"""Help for tests: virtual time, in which an hour of pauses takes milliseconds, and single answers of the service."""

from mobilemoney_async.testing.answers import (
    Routes,
    acknowledgement_answer,
    error_answer,
    login_answer,
    page_answer,
    transaction_answer,
    transaction_record,
)
from mobilemoney_async.testing.death import killed_at_end
from mobilemoney_async.testing.virtual_time import VirtualClockEventLoop, run_virtual, virtual_backend

__all__ = [
    "Routes",
    "VirtualClockEventLoop",
    "acknowledgement_answer",
    "error_answer",
    "killed_at_end",
    "login_answer",
    "page_answer",
    "run_virtual",
    "transaction_answer",
    "transaction_record",
    "virtual_backend",
]
