"""The checks of `second_world` find what they are there to find, and nothing else."""

from datetime import timedelta
from decimal import Decimal
from typing import Any

import attrs
import pytest

from mobilemoney_async import PaymentRecord, PaymentState
from mobilemoney_async.contract.states import TransactionType
from tests.payments.second_world import GRACE, broken_laws, unaccounted
from tests.support.fakes import NOON
from tests.support.second_service import Event, SecondService


@attrs.define(eq=False)
class Story:
    """A service and a store's records, built event by event, a minute apart."""

    service: SecondService = attrs.field(factory=lambda: SecondService(utcnow=lambda: NOON))
    records: dict[str, PaymentRecord] = attrs.field(factory=dict)

    def happens(self, what: str, owner: str | None = "k", *, made: int = 0, minutes: float = 1) -> None:
        at = NOON if not self.service.log else self.service.log[-1].at + timedelta(minutes=minutes)
        ids = tuple(self.service.make("collection", "+255681000100", "5000", owner=owner).id for _ in range(made))
        self.service.log.append(Event(what=what, at=at, owner=owner, made=ids))

    def records_as(self, state: PaymentState, transaction_id: str | None = None, key: str = "k", **more: Any) -> None:
        self.records[key] = PaymentRecord(
            key=key,
            type=TransactionType.COLLECTION,
            phone_number="+255681000100",
            amount=Decimal(5000),
            state=state,
            attempt=1,
            created_at=NOON,
            changed_at=NOON,
            transaction_id=transaction_id,
            **more,
        )

    @property
    def wrong(self) -> list[str]:
        return broken_laws(self.service, self.records)

    def lost(self, *reports: str) -> list[str]:
        return unaccounted(self.service, self.records, reports)


SENT_AGAIN, NO_LOOK = "k was sent again although its payment exists", "k was sent again after a word, without a look"


@pytest.mark.parametrize(
    ("events", "wrong"),
    [
        # A key may be sent again while its payment was not made, and afterwards only after a word and a fresh look.
        ("post made", []),
        ("made page made", [SENT_AGAIN]),
        ("word made page post", [SENT_AGAIN]),
        ("made page word page made", []),
        ("made page word page made page made", [SENT_AGAIN]),
        ("page made word page late", []),
        ("page made word page later", [NO_LOOK]),
        ("page made word made", [NO_LOOK]),
    ],
)
def test_when_a_key_may_be_sent_again(events: str, wrong: list[str]) -> None:
    story, minutes = Story(), {"late": GRACE / 60, "later": GRACE / 60 + 1}
    for each in events.split():
        is_made = each in {"made", *minutes}
        owner = None if each == "page" else "k"
        story.happens("post" if is_made else each, owner, made=is_made, minutes=minutes.get(each, 0.1))
    assert story.wrong == wrong


def test_a_payment_that_exists_is_not_absent() -> None:
    story = Story()
    story.happens("post", made=1)
    story.records_as(PaymentState.ABSENT)
    assert story.wrong == ["k is ABSENT, and exists"]
    story.happens("word")
    story.happens("page", None)
    story.happens("post")
    assert not story.wrong


def test_a_record_has_its_own_transaction() -> None:
    story = Story()
    story.happens("post", "other", made=1)
    story.records_as(PaymentState.ACKNOWLEDGED, "t-000001")
    assert story.wrong == ["k was taken for t-000001, which is other"]
    story.records_as(PaymentState.ACKNOWLEDGED, "t-000001", key="other")
    assert "other and k have one transaction" in story.wrong


def test_each_transaction_is_accounted_for() -> None:
    story = Story()
    story.happens("post", made=1)
    for state in (PaymentState.REFUSED, PaymentState.UNKNOWN, PaymentState.ABSENT):
        story.records_as(state)
        assert len(story.lost()) == 1
    story.records_as(PaymentState.RELEASED)
    assert len(story.lost()) == 1
    story.records_as(PaymentState.UNKNOWN, candidates=("t-000001",))
    assert not story.lost()
    story.records_as(PaymentState.ACKNOWLEDGED, "t-000001")
    assert not story.lost()


def test_a_second_transaction_must_be_reported() -> None:
    story = Story()
    story.happens("post", made=2)
    story.happens("somewhere else", None, made=1)
    story.records_as(PaymentState.ACKNOWLEDGED, "t-000001")
    assert len(story.lost()) == 2
    assert not story.lost("t-000002", "t-000003")
