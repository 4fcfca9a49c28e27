"""The payments service on your own machine, written from its contract with no code of the client's.

Importing it needs none of the extras; `Sandbox.app` and `Sandbox.serve` need the extra `sandbox`.
"""

from mobilemoney_async.sandbox import faults
from mobilemoney_async.sandbox.accounts import Account, Permission
from mobilemoney_async.sandbox.behaviour import Choices
from mobilemoney_async.sandbox.callback_queue import CallbackKind, CallbackMode
from mobilemoney_async.sandbox.callback_sender import CallbackSender, SentCallback
from mobilemoney_async.sandbox.fault_switches import SWITCHES, Switch, SwitchBoard, SwitchState
from mobilemoney_async.sandbox.faults import Fault
from mobilemoney_async.sandbox.ledger import Ledger, LedgerEntry
from mobilemoney_async.sandbox.magic import MAGIC_NUMBERS, MagicNumber
from mobilemoney_async.sandbox.payments import Payment
from mobilemoney_async.sandbox.phones import PIN, Phone, Prompt
from mobilemoney_async.sandbox.rate_limit import RateBudget
from mobilemoney_async.sandbox.request_log import LoggedRequest, RequestLog
from mobilemoney_async.sandbox.sandbox import Sandbox
from mobilemoney_async.sandbox.script import Rule
from mobilemoney_async.sandbox.states import IllegalTransitionError

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
