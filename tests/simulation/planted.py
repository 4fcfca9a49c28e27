"""Known defects, planted one at a time into the package: how soon does the simulator find each?

``python -m tests.simulation --planted [NAME …]``. Each is a piece of text and what it was, or might have been, before
it was repaired. The text is replaced while the module is imported, in a process of its own; no file changes. A defect
that is not found is a hole in the simulator.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import find_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:  # it imports the package, which a process with a defect has to import itself
    from tests.simulation.history import Result

_spec = find_spec("mobilemoney_async")
assert _spec is not None
assert _spec.origin is not None
PACKAGE = Path(_spec.origin).parent


@attrs.frozen
class Defect:
    """Defect: in a file of the package, one text in place of another; `is_on_server` if it shows on PostgreSQL only."""

    name: str
    file: str
    text: str
    instead: str
    is_on_server: bool = False


DEFECTS = (
    # Of this project's history.
    Defect(  # before "payments: looks for payments rest on evidence"
        "soft refusal is sent again without a look",
        "payments/records/record.py",
        "record.state is PaymentState.NOT_SENT or (record.state in _LOOKED_FOR and record.is_certain)",
        "record.state is PaymentState.NOT_SENT or record.state in _LOOKED_FOR",
    ),
    Defect(  # before "contract: side fields that cannot be read are None"
        "an odd side field hides its row",
        "contract/converter.py",
        "return read if is_core else _side_field(cl, field, kind, read)",
        "return read",
    ),
    Defect(  # before "resources: an acknowledgement counts without a store, too, only if it names what was asked for"
        "any acknowledgement is believed",
        "payments/creates/attempts.py",
        "problem = contradiction(answer, type=self.request.type, **asked)",
        "problem = None",
    ),
    Defect(  # as httpx-aiohttp once named every broken connection
        "a lost answer counts as not sent",
        "calls/transport_errors.py",
        "    if flight.is_direct or not flight.begun:\n        not_sent = not_sent or all(map(_is_not_sent, chain))\n",
        "    not_sent = not_sent or origin.__name__ in {'ReadError', 'ConnectError', 'ConnectTimeout'}\n",
    ),
    Defect(  # before "payments: a list that hides any own payment of its days shows no absence", and more of it
        "absence needs no control and no grace period",
        "payments/ownership/evidence.py",
        "            if reason is not None:\n                return reason\n"
        "        if not self.is_settled(query.ended_at):\n            return Reason(PaymentCause.IN_GRACE)\n",
        "            return None\n",
    ),
    Defect(  # before "sharing: a poller follows new payments also after the feed has begun anew"
        "the poller's cursor is dead for ever",
        "sharing/poller.py",
        "                self._is_lost = True\n                continue\n",
        "                await anyio.sleep(5)\n                continue\n",
    ),
    Defect(  # before "contract, calls: a create is refused only with evidence"
        "a proxy's 401 replays a create",
        "calls/retry.py",
        "Effect.MONEY: Action.RENEW_AND_RAISE",
        "Effect.MONEY: Action.RENEW_AND_REPLAY",
    ),
    Defect(  # before "contract: an error that names a transaction anywhere refuses no create", and more of it
        "every refusal is certain",
        "payments/creates/attempts.py",
        "is_certain = isinstance(error, APIError) and error.is_certain",
        "is_certain = isinstance(error, APIError)",
    ),
    Defect(  # before "payments: a lost payment is found in a list that shows another clock, however far back"
        "the service's clock counts as ours",
        "payments/ownership/matching.py",
        "    if not samples:\n        return None\n    skews",
        "    return Skew(low=timedelta(0), high=timedelta(0), is_own=True)\n    skews",
    ),
    Defect(  # a payment adopted as final of which no reader heard
        "the end of an adopted payment is not published",
        "payments/records/transaction_states.py",
        "        journal.record(row.key, PaymentEvent.FINISH, *final",
        "        if row.is_adopted:\n            journal.change(row.key, values)\n        else:\n"
        "            journal.record(row.key, PaymentEvent.FINISH, *final",
    ),
    Defect(  # an order's state that went back
        "a late loss takes back what was found",
        "payments/records/record.py",
        "    (_S.ACKNOWLEDGED, _E.FINISH): _S.FINAL,\n",
        "    (_S.ACKNOWLEDGED, _E.FINISH): _S.FINAL,\n"
        "    (_S.ACKNOWLEDGED, _E.LOSE): _S.UNKNOWN,\n    (_S.FINAL, _E.LOSE): _S.UNKNOWN,\n",
    ),
    Defect(  # a second payment after a late list
        "a look is valid for ever",
        "payments/records/record.py",
        "    return abs(now - record.looked_at) <= timedelta(seconds=max(grace, _SHORTEST_LOOK))\n",
        "    return True\n",
    ),
    Defect(  # before the grace period was counted from the end of the request
        "listings count within the grace period",
        "payments/ownership/reconciliation.py",
        "return record.ended_at is not None and self.evidence.is_settled(record.ended_at)",
        "return True",
    ),
    Defect(  # a snapshot that was restored
        "a store behind its service is not noticed",
        "payments/ownership/comparison.py",
        "    begins_life = facts.is_in_use(now) and",
        "    begins_life = not facts.is_in_use(now) and",
    ),
    Defect(  # before "payments: no reader of the feed loses a change to pruning, a restored store, or a lost lease"
        "a consumer's place is ahead of what is done",
        "payments/feed/consumers.py",
        "            self._pass(fresh[0].number - 1 if fresh else upto)\n",
        "            self._pass(upto)\n",
    ),
    Defect(  # before "payments: a witness whose time is off by minutes does not stop a look"
        "a clock that is set stops each look",
        "payments/ownership/evidence.py",
        "        is_near = is_within(row, *own.window(skew, STEADY))\n",
        "        is_near = is_within(row, *own.window(skew))\n",
    ),
    # Of the kinds that a change could bring back.
    Defect(
        "a cursor skips a change",
        "payments/feed/changes.py",
        '_PAGE.where(_columns.number > sa.bindparam("of_number"))',
        '_PAGE.where(_columns.number > sa.bindparam("of_number") + 1)',
    ),
    Defect(
        "a cursor repeats a change: >= for >",
        "payments/feed/changes.py",
        '_PAGE.where(_columns.number > sa.bindparam("of_number"))',
        '_PAGE.where(_columns.number >= sa.bindparam("of_number"))',
    ),
    Defect(
        "a create without an answer is repeated",
        "calls/retry.py",
        "Failure.NO_ANSWER: {Effect.READ: Action.RETRY}",
        "Failure.NO_ANSWER: dict.fromkeys(Effect, Action.RETRY)",
    ),
    Defect(
        "the record is written after the answer",
        "calls/pipeline.py",
        "patience = await recorder.sending(self.options.timeout)",
        "early = await self._exchange(call)\n        await recorder.sending(self.options.timeout)\n"
        "        await recorder.answered(early)\n        return early\n        patience = 0.0",
    ),
    Defect(  # that of a call's record has a second net, the buffer of results that is written at the end
        "a shield is dropped: a cancelled reader keeps its lease",
        "payments/feed/feed.py",
        "        await shielded(lambda: store.database.timed(leave), timeout=_SHIELD, ignored=StoreError)",
        "        await store.database.timed(leave)",
    ),
    Defect(
        "a lock is missing: nobody looks again before an attempt",
        "payments/creates/attempts.py",
        "        if row is None or row.attempt != expected or clearance(to_record(row), None) is not Clearance.SEND:\n",
        "        if row is None:\n",
    ),
    Defect(
        "the budget forgets what was sent",
        "sharing/budget.py",
        "                grants=[at + shift for at in grants],\n"
        "                made_up=[at + shift for at in made_up],\n",
        "                grants=[],\n                made_up=[],\n",
    ),
    Defect(
        "the minute of the limit is a second short",
        "calls/bucket.py",
        "ready = max(ready, self._grants[0] + self._window + self._jitter)",
        "ready = max(ready, self._grants[0] + self._window - 1)",
    ),
    Defect(
        "the limit is half used",
        "sharing/budget.py",
        "        return max(earliest, self.bucket.ready_at(), self.bucket.last_at())\n",
        "        return max(earliest, self.bucket.ready_at(), self.bucket.last_at() + 2.6)\n",
    ),
    Defect(
        "a poller that begins follows nothing of before",
        "payments/records/queries.py",
        ".where(_columns.account == journal.account, _columns.state == PaymentState.ACKNOWLEDGED)\n        .order_by",
        ".where(_columns.account == journal.account, _columns.state == PaymentState.FINAL)\n        .order_by",
    ),
    Defect(
        "a change that failed does not come again",
        "payments/feed/consumers.py",
        "tries=1, next_at=now + pause(1), error=error",
        "tries=1, next_at=None, error=error",
    ),
    Defect(
        "amounts are not compared",
        "payments/ownership/matching.py",
        "    if row.amount != Decimal(query.amount):\n        return Match.NONE\n    if row.merchant_id",
        "    if row.merchant_id",
    ),
    Defect(
        "a part of the list counts as the whole",
        "payments/ownership/listing.py",
        "        listing = reader.listing(counted=counted)\n",
        "        listing = reader.listing(is_complete=True, counted=counted)\n",
    ),
    Defect(  # before "payments: one predicate decides when a payment is looked for"
        "a later payment makes no unknown one due",
        "payments/records/due.py",
        "PaymentState.UNKNOWN, sa.or_(_IS_TIME, _has_what_it_lacked())),",
        "PaymentState.UNKNOWN, _IS_TIME),",
    ),
    Defect(
        "a final state that changes is told to nobody",
        "payments/ownership/unclaimed.py",
        "        await compare_final_states(self._store, rows, now=now, on_event=self._on_event)\n",
        "",
    ),
    Defect(
        "a rival is not looked for",
        "payments/ownership/evidence.py",
        "            rival = self._rival(key, row, skew)\n",
        "            rival = None\n",
    ),
    Defect(
        "phone numbers are not masked",
        "text.py",
        '    return f"{phone_number[:head]}…{phone_number[-tail:]}"\n',
        "    return phone_number\n",
    ),
    Defect(
        "a payment under way counts as lost at once",
        "payments/creates/attempts.py",
        "until, made = lives + REQUEST_MARGIN,",
        "until, made = -3_600.0,",
    ),
    Defect(
        "another merchant's row counts as ours",
        "payments/ownership/matching.py",
        "    if row.merchant_id and spellings.merchant_id and row.merchant_id != spellings.merchant_id:\n"
        "        return Match.NONE\n"
        "    is_ours = not spellings.is_marked or row.merchant_id == spellings.merchant_id is not None\n",
        "    is_ours = True\n",
    ),
    Defect(
        "a match is adopted although other systems pay too",
        "payments/ownership/reconciler.py",
        "        if self._store.sole_writer is False:\n            return PaymentCause.OTHER_SYSTEM\n",
        "",
    ),
    Defect(
        "the answer to another lookup is believed",
        "contract/endpoints.py",
        'shown = {"transaction_id": row.id, "reference": row.reference, "external_id": row.external_id}',
        "shown = {}",
    ),
    Defect(
        "the late answer of an earlier attempt counts for the next one",
        "payments/records/rows.py",
        "if entry.attempt not in {None, row.attempt}:",
        "if entry.attempt not in {None, entry.attempt}:",
    ),
    Defect(
        "one listing without a payment makes it absent",
        "payments/records/record.py",
        "LISTINGS = 2\n",
        "LISTINGS = 1\n",
    ),
    Defect(
        "a payment that was refused softly and is cancelled counts as never made",
        "payments/outbox/outbox.py",
        "for state, is_doubtful in ((PaymentState.REFUSED, True), (target, False)):",
        "for state, is_doubtful in ((target, False),):",
    ),
    Defect(
        "a sender that stood still may send a quarter of an hour later",
        "calls/pipeline.py",
        "return max(loop_time() - asked_at, (self.utcnow() - written_at).total_seconds())",
        "return max(loop_time() - asked_at, (self.utcnow() - written_at).total_seconds()) - 900",
    ),
    Defect(
        "a match that fits another key's earlier attempt is adopted",
        "payments/ownership/reconciliation.py",
        "if verdict.adopt is not None and check.rival is not None:",
        "if False:",
    ),
    # Chosen by somebody who had not read the simulator.
    Defect(
        "a host that slept between record and socket sends what others have given up",
        "calls/pipeline.py",
        "return max(loop_time() - asked_at, (self.utcnow() - written_at).total_seconds())",
        "return loop_time() - asked_at",
    ),
    Defect(
        "a soft refusal of a queued payment counts as certainly unmade",
        "payments/creates/attempts.py",
        'is_unmade = outcome == "not_sent" or (is_certain and isinstance(error, REFUSED_FOR_ALL))',
        'is_unmade = outcome == "not_sent" or isinstance(error, REFUSED_FOR_ALL)',
    ),
    Defect(
        "the last change of a lagging payment is skipped",
        "payments/feed/consumers.py",
        "columns.number <= upto",
        "columns.number < upto",
    ),
    Defect(
        "a row that is stamped late does not forbid absence",
        "payments/ownership/matching.py",
        "return self.window(skew, _NEAR)",
        "return self.window(skew, _NEAR)[0], self.window(skew)[1]",
    ),
    Defect(
        "a poller does not catch up after a new epoch of the feed",
        "sharing/poller.py",
        "missed, self._is_lost = await self.join(resume=True), False",
        "missed, self._is_lost = await self.join(resume=False), False",
    ),
    Defect(
        "a host's clock says what is late",
        "database/engine.py",
        "datetime.fromtimestamp(self._read_clock(connection), UTC)",
        "datetime.fromtimestamp(time.time(), UTC)",
        is_on_server=True,
    ),
)


class _Loader(SourceFileLoader):
    """Loader of the module that has the defect."""

    def __init__(self, defect: Defect) -> None:
        name = "mobilemoney_async." + defect.file.removesuffix(".py").replace("/", ".")
        super().__init__(name, str(PACKAGE / defect.file))
        self.text = planted(defect)

    def path_stats(self, path: str | bytes) -> Mapping[str, float]:
        raise OSError("compiled code is of the file, without the defect")

    def get_data(self, path: str | bytes) -> bytes:
        return self.text.encode()


@attrs.define(eq=False)
class _Planter(MetaPathFinder):
    """Importer of that module."""

    loader: _Loader

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        is_it = fullname == self.loader.name
        return spec_from_file_location(fullname, self.loader.path, loader=self.loader) if is_it else None


def planted(defect: Defect) -> str:
    """Return the text of a module with its defect."""
    text = (PACKAGE / defect.file).read_text()
    assert text.count(defect.text) == 1, f"{defect.name}: {defect.file} has changed"
    return text.replace(defect.text, defect.instead)


def look_for(defect: Defect, first: int, seconds: float, *, is_shown: bool = False, profile: str | None = None) -> bool:
    """Simulate with a defect until a law is broken, or for so many seconds of a processor; print when that was."""
    assert not any(each.startswith("mobilemoney_async") for each in sys.modules)
    sys.meta_path.insert(0, _Planter(_Loader(defect)))
    from tests.simulation.history import play
    from tests.simulation.plan import Plan
    from tests.simulation.shrink import shrink, timeline
    from tests.support.databases import postgres

    hours, took, seed = 0.0, 0.0, first
    with ExitStack() as stack:
        server = stack.enter_context(postgres()) if defect.is_on_server else None
        while took < seconds:
            result = play(Plan.drawn(str(seed), profile), server=server)
            hours, took = hours + result.hours, took + result.seconds
            if result.broken and not _breaks_anyway(result, *["--postgresql"] * defect.is_on_server):
                print(f"{defect.name}: seed {seed}, {hours:.1f} h, {took:.0f} s of CPU: {result.broken[0]}", flush=True)
                if is_shown:
                    print(timeline(result if defect.is_on_server else shrink(result)))
                return True
            seed += 1
    print(f"{defect.name}: NOT FOUND in {seed - first} histories, {hours:.1f} h, {seconds:.0f} s of CPU")
    return False


def _breaks_anyway(result: Result, *options: str) -> bool:
    """Return whether a history breaks a law also without the defect."""
    from tests.support.processes import module_command

    profile = [] if result.plan.profile is None else ["--profile", result.plan.profile]
    command = module_command("tests.simulation", "--seed", result.plan.seed, *profile, *options, "--as-is")
    return subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode != 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Look for each defect, or for those that are named, each in a process of its own."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation --planted", description=__doc__)
    parser.add_argument("names", nargs="*", help="the beginnings of the defects' names")
    parser.add_argument("--cpu", type=float, default=3_600.0, help="seconds of a processor for each")
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--show", action="store_true", help="print the shortest history that shows it")
    parser.add_argument("--here", action="store_true", help="the only one, in this process")
    parser.add_argument("--profile", help="in histories of one profile only")
    options = parser.parse_args(arguments)
    chosen = [each for each in DEFECTS if not options.names or each.name.startswith(tuple(options.names))]
    if options.here:
        return (
            0 if look_for(chosen[0], options.seed, options.cpu, is_shown=options.show, profile=options.profile) else 1
        )
    # Not above: it imports the package, which a process with a defect has to import itself.
    from tests.support.processes import module_command

    arguments = ["--here", "--cpu", str(options.cpu), "--seed", str(options.seed), *["--show"] * options.show]
    arguments += [] if options.profile is None else ["--profile", options.profile]
    command = module_command("tests.simulation.planted", *arguments)
    variables = {**os.environ, "PYTHONHASHSEED": "0"}
    failures = 0
    for each in chosen:
        failures += subprocess.run([*command, each.name], env=variables, check=False).returncode != 0
    print(f"{len(chosen) - failures} of {len(chosen)} planted defects found")
    return 1 if failures or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
