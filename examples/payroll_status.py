"""The status of each salary of the payroll, and the report."""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mobilemoney_async import PaymentRecord, PaymentState
from mobilemoney_async.values import mask_phone_number
from payroll_file import Salary

# Looks in the list, after the grace period, that have not shown a payment.
LOOKS = 2
UNSENT = {PaymentState.NOT_SENT, PaymentState.REFUSED, PaymentState.RELEASED}


class Status(enum.Enum):
    """Status of a salary; the value gives the next step."""

    PAID = "nothing is left to do."
    FAILED = "accepted, and no money moved. Fix the cause and start again with --retry-failed."
    REFUSED = "the service said no. Fix the cause and start again, with --retry-failed if the row has changed."
    NOT_SENT = "nothing was sent, or it provably did not arrive. Start again."
    ON_ITS_WAY = "accepted, and not final yet. Start again later; do not pay it in another way."
    UNKNOWN = "it may be paid or not. Start again later, which finds out; do not pay it in another way."
    AMBIGUOUS = (
        "it may be one of the transactions named. Compare them. If it is none of them, confirm it with "
        "`mobilemoney payments confirm-absent KEY --note …` and start again."
    )
    ABSENT = (
        "the service's list does not show it. Look on its dashboard, or ask the employee. If it is not paid, confirm "
        "it with `mobilemoney payments confirm-absent KEY --note …` and start again."
    )

    def __str__(self) -> str:
        return self.name.lower().replace("_", " ")


@dataclass(frozen=True)
class Payment:
    """Salary, the key of its payment, and the store's record of it."""

    salary: Salary
    key: str
    record: PaymentRecord | None = None

    @property
    def status(self) -> Status:
        """Status of the salary by its record."""
        record = self.record
        if record is None or record.state in {PaymentState.NOT_SENT, PaymentState.RELEASED}:
            return Status.NOT_SENT
        if record.state is PaymentState.REFUSED:
            return Status.REFUSED
        if record.transaction is not None and record.is_final:
            return Status.PAID if record.transaction.succeeded else Status.FAILED
        if record.is_unresolved:
            # The last salaries have no later payment that would prove their absence: a person looks, too.
            is_missing = record.state is PaymentState.ABSENT or record.walks >= LOOKS
            return Status.AMBIGUOUS if record.is_ambiguous else Status.ABSENT if is_missing else Status.UNKNOWN
        return Status.ON_ITS_WAY

    @property
    def is_due(self) -> bool:
        """Return whether to send it."""
        return self.record is None or self.record.state in UNSENT

    @property
    def is_open(self) -> bool:
        """Return whether its status may change while we wait."""
        return self.status in {Status.ON_ITS_WAY, Status.UNKNOWN}

    @property
    def contradicts(self) -> bool:
        """Return whether number or amount in the file differ from those sent, or tried, under this key."""
        in_file = (self.salary.phone_number, self.salary.amount)
        return self.record is not None and in_file != (self.record.phone_number, int(self.record.amount))


def report(payments: Sequence[Payment], errors: Mapping[str, str]) -> int:
    """Print the paid sum, and each other salary with the next step; return the exit code."""
    paid = [each.salary.amount for each in payments if each.status is Status.PAID]
    total = sum(each.salary.amount for each in payments)
    print(f"paid: {len(paid)} of {len(payments)} salaries, {sum(paid):,} of {total:,} TZS")
    left = {each.status for each in payments} - {Status.PAID}
    for status in (each for each in Status if each in left):
        print(f"\n{status}: {status.value}")
        for each in payments:
            if each.status is status:
                salary, number = each.salary, mask_phone_number(each.salary.phone_number)
                row = f"line {salary.line}  {each.key}  {salary.amount:,} TZS  {number}  {why(each, errors)}"
                print(f"  {row.rstrip()}")
    if not left:
        return 0
    return 4 if left <= {Status.FAILED, Status.REFUSED} else 3


def why(payment: Payment, errors: Mapping[str, str]) -> str:
    record = payment.record
    if record is not None and record.transaction is not None:
        return record.transaction.failure_reason or str(record.transaction.status)
    if record is not None:
        return " ".join(record.candidates) or record.error or ""
    return errors.get(payment.key, "")
