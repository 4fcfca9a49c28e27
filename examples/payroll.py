"""Pays the salaries of one month, each once, from several processes that share one store.

`python examples/payroll.py examples/salaries.csv --sandbox` shows it with no account and no money. For the service
itself, set the environment variables of `AsyncClient.from_env`, and name the store that remembers the payments:
`python examples/payroll.py salaries.csv --store sqlite:///payroll.db --processes 3`.

After any failure, also a power cut, start it again with the same file and the same store. Each salary is paid once.

`payroll_file.py` reads the file, `payroll_status.py` has the status of each salary, `payroll_paying.py` pays.

Exit codes: 0 every employee is paid; 1 the service or the store failed; 2 wrong usage, or a file that cannot be paid as
it is, of which nothing was sent; 3 a payment is open; 4 no payment is open, but at least one was refused or has failed;
130 interrupted.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import anyio
from anyio.from_thread import start_blocking_portal

from mobilemoney_async import MobileMoneyError
from payroll_file import COLUMNS, BadFileError, Salary, read_salaries
from payroll_paying import Job, pay, prepare, settle
from payroll_status import report


@contextmanager
def own_sandbox(job: Job) -> Iterator[Job]:
    """Start a sandbox in a thread, and yield the job with that sandbox and a store of its own."""
    from mobilemoney_async.sandbox import Sandbox

    sandbox = Sandbox(speed=20)
    with tempfile.TemporaryDirectory() as folder, start_blocking_portal() as portal:
        with portal.wrap_async_context_manager(sandbox.serve()) as base_url:
            os.environ.pop("MOBILEMONEY_EMAIL", None)
            os.environ |= {"MOBILEMONEY_BASE_URL": base_url, "MOBILEMONEY_TOKEN": sandbox.token}
            yield replace(job, store=f"sqlite:///{folder}/payroll.db", grace=2.0, speed=sandbox.speed)
            ledger = portal.call(lambda: sandbox.ledger)
            print(f"\nThe sandbox has paid {len(ledger)} salaries, {ledger.disbursed:,} TZS.")


def arguments(argv: Sequence[str] | None) -> tuple[Path, Job, bool]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help=f"CSV with the columns {','.join(COLUMNS)}")
    parser.add_argument("--store", default=os.environ.get("MOBILEMONEY_STORE"), help="default: MOBILEMONEY_STORE")
    parser.add_argument("--processes", type=int, default=2, choices=range(1, 33), metavar="N", help="default: 2")
    parser.add_argument("--retry-failed", action="store_true", help="pay failed salaries again, under a new key")
    parser.add_argument(
        "--wait", type=float, default=600, metavar="S", help="how long to follow payments, default: 600 s"
    )
    parser.add_argument("--grace", type=float, default=120, metavar="S", help="see SQLStore, default: 120 s")
    parser.add_argument(
        "--stale-after", type=float, metavar="S", help="see payments.reconcile; 0 if no other run is alive"
    )
    parser.add_argument("--sandbox", action="store_true", help="try it, with a sandbox and a temporary store")
    parser.add_argument(
        "--speed", type=float, default=1.0, metavar="X", help="speed of a sandbox: X times the rate limit"
    )
    given = vars(parser.parse_args(argv))
    file, is_sandbox = given.pop("file"), given.pop("sandbox")
    if given["store"] is None and not is_sandbox:
        parser.error("name the store that remembers the payments: --store or MOBILEMONEY_STORE")
    return file, Job(**given | {"store": given["store"] or ""}), is_sandbox


def run(job: Job, salaries: Sequence[Salary]) -> int:
    payments = anyio.run(prepare, job, salaries)
    known = sum(each.record is not None for each in payments)
    # After a restart, 0 here means that the store is another one.
    print(f"{known} of {len(payments)} salaries are in the store already", file=sys.stderr)
    errors = pay(job, payments)
    return report(anyio.run(settle, job, payments), errors)


def main(argv: Sequence[str] | None = None) -> int:
    file, job, is_sandbox = arguments(argv)
    try:
        salaries = read_salaries(file)
        with own_sandbox(job) if is_sandbox else nullcontext(job) as job_there:
            return run(job_there, salaries)
    except BadFileError as error:
        print(f"{file}: nothing was sent, since\n{error}", file=sys.stderr)
        return 2
    except MobileMoneyError as error:
        print(f"stopped: {error}\nStart again: each salary is paid once.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted. Start again: each salary is paid once.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
