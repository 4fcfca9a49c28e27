"""The fault switches: each fault by hand, alone and together with others and with a script."""

import inspect
import json
from collections.abc import Callable

import pytest

from mobilemoney_async.sandbox import SWITCHES, Choices, Fault, Rule, Sandbox, Switch, SwitchState, faults
from mobilemoney_async.sandbox.messages import Reply, ReplyDelivery
from tests.sandbox.service import ORDINARY, STUCK, Service

PROFILE = "/user-service/profile"


def state(service: Service, slug: str) -> SwitchState:
    return next(state for state in service.engine.switches.states() if state.switch.slug == slug)


def profile(service: Service) -> Reply:
    return service.send("GET", PROFILE).reply


def make(function: Callable[..., Fault]) -> Fault:
    """Call a function of `faults` with its required arguments."""
    required = {"processed": True, "seconds": 1.0, "order": "oldest-first"}
    parameters = inspect.signature(function).parameters.values()
    return function(**{each.name: required[each.name] for each in parameters if each.default is each.empty})


def test_every_fault_has_a_switch() -> None:
    """Every fault of a script can be turned on by hand."""
    makers = [
        function
        for name, function in inspect.getmembers(faults, inspect.isfunction)
        if not name.startswith("_") and inspect.signature(function).return_annotation is Fault
    ]
    assert len(makers) > 10
    assert {make(maker).name for maker in makers} == {switch.fault().name for switch in SWITCHES}


def test_each_fault_has_a_switch_before_and_after_processing() -> None:
    """A client must not guess whether a request took effect, so both cases can be tried."""
    for name in ("drop", "lost", "server error", "html page", "empty body"):
        variants = {switch.fault().instead is None for switch in SWITCHES if switch.fault().name == name}
        assert variants == {True, False}, name


def test_slugs_are_unique() -> None:
    for names in ([switch.slug for switch in SWITCHES], [switch.label for switch in SWITCHES]):
        assert len(set(names)) == len(names)
    for switch in SWITCHES:
        assert switch.slug.strip("abcdefghijklmnopqrstuvwxyz0123456789-") == ""
        assert switch.description.endswith(".")


@pytest.mark.parametrize("switch", SWITCHES, ids=lambda switch: switch.slug)
def test_each_switch_strikes_once_and_turns_itself_off(service: Service, switch: Switch) -> None:
    service.collect(STUCK)
    calm = service.list().reply
    service.engine.switches.turn_on(switch.slug)
    assert state(service, switch.slug).is_on
    struck = service.list().reply
    assert struck.fault == switch.fault().name
    assert (state(service, switch.slug).is_on, state(service, switch.slug).fired) == (False, 1)
    assert service.list().reply == calm


@pytest.mark.parametrize("switch", SWITCHES, ids=lambda switch: switch.slug)
def test_a_switch_is_true_about_processing(service: Service, switch: Switch) -> None:
    """A switch says that the request is not processed exactly where it has no effect."""
    service.engine.switches.turn_on(switch.slug, on="*")
    service.collect(STUCK)
    assert len(service.engine.book.payments) == (switch.processed is not False)
    assert ("not processed" in switch.label) == (switch.processed is False)


def test_one_can_stay_on_until_it_is_turned_off(service: Service) -> None:
    switches = service.engine.switches
    switches.turn_on("error-500-after", once=False)
    assert [profile(service).status for _ in range(3)] == [500] * 3
    assert (state(service, "error-500-after").once, state(service, "error-500-after").fired) == (False, 3)
    switches.turn_off("error-500-after")
    assert profile(service).status == 200
    switches.turn_off("error-500-after")
    switches.turn_on("error-500-after")
    assert [profile(service).status for _ in range(2)] == [500, 200]
    assert (state(service, "error-500-after").is_on, state(service, "error-500-after").fired) == (False, 4)


def test_one_can_be_for_some_requests_only(service: Service) -> None:
    service.engine.switches.turn_on("refused", on="POST c2b")
    assert state(service, "refused").on == "POST c2b"
    assert profile(service).wire is ReplyDelivery.ANSWERED
    assert service.collect().reply.wire is ReplyDelivery.REFUSED
    assert state(service, "refused").on == "POST c2b"


def test_list_switches_strike_lists_by_default(service: Service) -> None:
    service.engine.switches.turn_on("oldest-first")
    assert state(service, "oldest-first").on == "transactions"
    profile(service)
    assert state(service, "oldest-first").fired == 0
    service.engine.switches.turn_on("oldest-first", on="*")
    assert state(service, "oldest-first").on is None
    profile(service)
    assert state(service, "oldest-first").fired == 1


def test_switches_for_the_next_request_strike_one_request_each(service: Service) -> None:
    """In the order in which they were turned on; turning one on again puts it last."""
    for slug in ("error-500-after", "token-expired", "error-503-before", "error-500-after"):
        service.engine.switches.turn_on(slug)
    assert [profile(service).status for _ in range(4)] == [401, 503, 500, 200]


def test_switches_that_shape_the_answer_strike_together(service: Service) -> None:
    for slug in ("slow", "unknown-fields", "nulls"):
        service.engine.switches.turn_on(slug, once=False)
    transaction_id = service.collect(STUCK).json["transaction_id"]
    reply = service.get(transaction_id).reply
    record = json.loads(reply.body)["transaction"]
    assert (reply.delay, record["x_note"], record["fees"]) == (5, "new in v1.1", None)
    assert [state(service, slug).fired for slug in ("slow", "unknown-fields", "nulls")] == [2, 2, 2]


def test_one_alone_decides_the_whole_answer(service: Service) -> None:
    """Of those that stay on the first; one for the next request goes before them; the counts say which."""
    switches = service.engine.switches
    switches.turn_on("slow", once=False)
    switches.turn_on("error-500-after", once=False)
    switches.turn_on("error-503-before", once=False)
    switches.turn_on("token-expired")
    replies = [profile(service) for _ in range(3)]
    assert [reply.status for reply in replies] == [401, 500, 500]
    assert [reply.delay for reply in replies] == [5, 5, 5]
    assert [reply.fault for reply in replies] == ["token expired", "server error", "server error"]
    assert [state(service, slug).fired for slug in ("slow", "error-500-after", "error-503-before")] == [3, 2, 0]
    switches.turn_off("error-500-after")
    assert profile(service).status == 503


def test_a_shaping_one_for_the_next_request_leaves_room_for_a_deciding_one(service: Service) -> None:
    service.engine.switches.turn_on("error-500-after", once=False)
    service.engine.switches.turn_on("slow")
    assert [(reply.status, reply.delay) for reply in (profile(service), profile(service))] == [(500, 5), (500, 0)]


def test_a_script_goes_before_the_switches(service: Service) -> None:
    """Scripted faults strike exactly as scripted; switches strike the other requests."""
    service.engine.switches.turn_on("token-expired")
    service.engine.switches.turn_on("slow", once=False)
    service.engine.script.add(Rule(faults=(faults.html_page(),), on="profile", times=2))
    replies = [profile(service) for _ in range(4)]
    assert [(reply.status, reply.delay) for reply in replies] == [(502, 0), (502, 0), (401, 5), (200, 5)]


def test_clearing_the_script_leaves_the_switches_alone_and_the_other_way_round() -> None:
    sandbox = Sandbox(choices=Choices(rate_limit=None))
    sandbox.switches.turn_on("slow")
    rule = sandbox.script(faults.html_page())
    sandbox.clear_script()
    assert any(state.is_on for state in sandbox.switches.states())
    sandbox.script(faults.html_page())
    sandbox.switches.all_off()
    assert not any(state.is_on for state in sandbox.switches.states())
    assert not rule.fired


def test_a_magic_number_works_while_switches_are_on(service: Service) -> None:
    service.engine.switches.turn_on("slow", once=False)
    reply = service.collect("+255780000203").reply
    assert (reply.status, reply.delay) == (500, 5)


def test_states_have_the_order_of_the_switches(service: Service) -> None:
    states = service.engine.switches.states()
    assert tuple(each.switch for each in states) == SWITCHES
    assert {(each.is_on, each.once, each.fired) for each in states} == {(False, True, 0)}


def test_an_unknown_switch_is_refused(service: Service) -> None:
    switches = service.engine.switches
    for wrong in (switches.turn_on, switches.turn_off):
        with pytest.raises(ValueError, match="there is no switch 'rats'; there are: refused, "):
            wrong("rats")
    switches.turn_on("slow", once=False)
    with pytest.raises(ValueError, match="no request can match"):
        switches.turn_on("slow", on="DELETE c2b")
    assert (state(service, "slow").is_on, state(service, "slow").once) == (True, False)
    assert service.collect(ORDINARY).reply.delay == 5
