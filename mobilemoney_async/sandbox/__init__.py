"""Payments service on your own machine, written from its contract with no code of the client's.

Importing it needs none of the extras; `Sandbox.app` and `Sandbox.serve` need the extra `sandbox`.
"""

from mobilemoney_async.sandbox import faults
from mobilemoney_async.sandbox.accounts import Account, Permission
from mobilemoney_async.sandbox.behaviour import Choices, RateBudget
from mobilemoney_async.sandbox.callbacks import CallbackKind, CallbackMode, CallbackSender, SentCallback
from mobilemoney_async.sandbox.faults import Fault
from mobilemoney_async.sandbox.magic import MAGIC_NUMBERS, MagicNumber
from mobilemoney_async.sandbox.phones import PIN, Phone, Prompt
from mobilemoney_async.sandbox.records import Ledger, LedgerEntry, LoggedRequest, RequestLog
from mobilemoney_async.sandbox.sandbox import Sandbox
from mobilemoney_async.sandbox.script import SWITCHES, Rule, Switch, SwitchBoard, SwitchState
from mobilemoney_async.sandbox.states import IllegalTransitionError, Payment

__all__ = [
    "MAGIC_NUMBERS",
    "PIN",
    "SWITCHES",
    "Account",
    "CallbackKind",
    "CallbackMode",
    "CallbackSender",
    "Choices",
    "Fault",
    "IllegalTransitionError",
    "Ledger",
    "LedgerEntry",
    "LoggedRequest",
    "MagicNumber",
    "Payment",
    "Permission",
    "Phone",
    "Prompt",
    "RateBudget",
    "RequestLog",
    "Rule",
    "Sandbox",
    "SentCallback",
    "Switch",
    "SwitchBoard",
    "SwitchState",
    "faults",
]
