"""What an account has in its queue, the end of its pause, and which payouts nothing sends."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, TypeVar

from mobilemoney_async.cli import output
from mobilemoney_async.cli.failures import Refused, copyable, say
from mobilemoney_async.cli.options import Service, confirm_money, require_yes
from mobilemoney_async.cli.payments import command_lines
from mobilemoney_async.cli.stores import find_store, run_with_account
from mobilemoney_async.configuration.settings import Settings
from mobilemoney_async.payments.payouts.batch import PayoutBatch
from mobilemoney_async.payments.records.next_steps import next_step
from mobilemoney_async.text import command_line

if TYPE_CHECKING:
    from mobilemoney_async.payments.payouts.review import Queue
    from mobilemoney_async.payments.records.journal import Journal

T = TypeVar("T")

# Payouts that were confirmed absent which are named.
_MOST_NAMED = 3


def confirm_sending(settings: Settings, id: str, service: Service, *, yes: bool = False) -> None:
    """Ask before a dispatcher sends real money: what is queued in the account, whatever batch it is of."""
    queue = _find_queue(id, service)
    if queue.payouts or queue.others:
        confirm_money(settings, _describe(queue), yes=yes)


def say_what_is_queued(id: str, service: Service) -> None:
    """Say what is queued in the account of a batch beside it, if anything is."""
    queue = _find_queue(id, service)
    if queue.others:
        listing = command_line("payments", "list", "--state", "queued", *service.store_flags)
        say("payouts", f"not followed, and still in the queue: {_describe_others(queue)}; see {listing}")


def resume_queue(service: Service, *, yes: bool, with_batch: bool = False) -> None:
    """Ask before queued payments go on, and end the pause of the account's dispatchers. Sends nothing itself.

    With a batch, that was asked already; but not whether payouts go on that a restored store may have cancelled.
    """
    from mobilemoney_async.payments.outbox.pauses import Pause, find_pause, save_pause

    pause, account = _read(lambda journal: (find_pause(journal), journal.find_account()), service)
    if not pause.lasts:
        said = f"the queue of account {find_store(service).account!r}"
        if pause.is_over(datetime.now(UTC)):
            say("payouts", f"{said} is not paused")
        else:
            say("payouts", f"{said} goes on by itself at {pause.until:%H:%M:%S} UTC: {copyable(pause.reason or '')}")
        return
    said = f"the queue is paused: {copyable(pause.reason or '')}"
    if account is not None and account.state is not None:  # it may hide a pause that nobody has been shown
        raise Refused(said)
    say("payouts", said)
    queue = _find_queue(None, service)
    queued = _payments(queue.others, "queued payment", queue.others_total)
    if not (yes or (with_batch and not pause.of_payouts)):
        require_yes(f"Is the reason gone, so that {queued} may be sent?", otherwise="nothing was changed")

    def resume(journal: Journal, at: datetime) -> bool:
        journal.lock_account()
        is_the_same = find_pause(journal) == pause
        if is_the_same:
            save_pause(journal, Pause(resumed_at=at, of_payouts=pause.of_payouts))
        return is_the_same

    if not run_with_account("payouts", lambda store: store.decide(resume), find_store(service)):
        raise Refused("the pause has changed meanwhile, and nothing was changed: run it again")
    if (left := _read(find_pause, service)).lasts:
        say("payouts", f"the queue is still paused: {copyable(left.reason or '')}")
        return
    if not with_batch:  # else this command sends them
        say("payouts", f"the queue goes on: a dispatcher of your program sends {queued}")


def say_released(batch: PayoutBatch, service: Service) -> None:
    """Say how the payouts that were confirmed absent can be sent: no step of a batch does so."""
    if not batch.states.get("RELEASED"):
        return
    from mobilemoney_async.payments.payouts.queries import find_released

    found = _read(lambda journal: find_released(journal, batch.id), service)
    for each in found[:_MOST_NAMED]:
        step = next_step(each, each.changed_at)
        advice = " or ".join(command_lines(step, service)) or copyable(step.text)
        say("payouts", f"payment {each.key!r} was confirmed absent, and nothing sends it: {advice}")
    if more := len(found[_MOST_NAMED:]):
        listing = command_line("payments", "list", "--state", "RELEASED", *service.store_flags)
        say("payouts", f"so were {more:,} more: {listing}")


def _read(work: Callable[[Journal], T], service: Service) -> T:
    return run_with_account("payouts", lambda store: store.read(work), find_store(service))


def _find_queue(id: str | None, service: Service) -> Queue:
    from mobilemoney_async.payments.payouts.review import find_queue

    return _read(lambda journal: find_queue(journal, id), service)


def _describe(queue: Queue) -> str:
    """Return what is sent: the payouts of a batch, and what else is queued in its account."""
    own = _payments(queue.payouts, "payout", queue.total)
    if not queue.others:
        return own
    return f"{f'{own}, and' if queue.payouts else 'none of this batch, but'} {_describe_others(queue)} of this account"


def _describe_others(queue: Queue) -> str:
    """Return what is queued in the account of a batch beside it."""
    return _payments(queue.others, "other queued payment", queue.others_total)


def _payments(count: int, noun: str, total: Decimal) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)} of {output.money(total)}"
