import itertools

import pytest

from mobilemoney_async.sandbox.states import INITIAL, TRANSITIONS, Event, IllegalTransitionError, Kind, Status, after

# From contract.md section 3, by hand.
FINAL = {
    Kind.COLLECTION: {Status.SUCCESS, Status.FAILED, Status.TIMEOUT},
    Kind.DISBURSEMENT: {Status.SUCCESS, Status.FAILED, Status.INSUFFICIENT_FUNDS},
}


@pytest.mark.parametrize(("kind", "status", "event"), list(itertools.product(Kind, Status, Event)))
def test_every_pair_of_state_and_event(kind: Kind, status: Status, event: Event) -> None:
    """Pairs in the table lead from the open state into a final one; all others are refused."""
    if (kind, status, event) in TRANSITIONS:
        assert status is INITIAL[kind]
        assert after(kind, status, event) in FINAL[kind]
    else:
        with pytest.raises(IllegalTransitionError, match="cannot"):
            after(kind, status, event)


def test_every_final_state_can_be_reached() -> None:
    for kind, final in FINAL.items():
        assert {state for (of, _, _), state in TRANSITIONS.items() if of is kind} == final
