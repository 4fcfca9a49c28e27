"""Plan of a world: everything that is drawn before it begins. It can be made smaller, to shrink a failing history."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import attrs

from tests.simulation.service import Nature

# The highest probability of each fault: of a request, a transaction of the database or a decision.
FAULTS: dict[str, float] = {
    # The network, as the client sees it
    "no_connection": 0.2,
    "connect_timeout": 0.05,
    "request_broken": 0.1,
    "request_lost": 0.1,
    "answer_lost": 0.2,
    "answer_cut": 0.2,
    "answer_late": 0.1,
    "request_late": 0.1,
    # The service and what is in front of it
    "token_lost": 0.05,
    "rate_limited": 0.05,
    "server_error": 0.2,
    "refused_before": 0.2,
    "proxy_401": 0.3,
    "lie_refused": 0.2,
    "error_after": 0.2,
    "answers_mixed": 0.2,
    "lookups_mixed": 0.2,
    "proxy_repeats": 0.1,
    "lookup_lost": 0.03,
    "status_stale": 0.2,
    "side_field_odd": 0.3,
    "list_empty": 0.1,
    "list_lag": 0.1,
    "list_cap": 0.1,
    "list_shuffled": 0.3,
    "list_unreadable": 0.1,
    "list_gap": 0.1,
    "list_hole": 0.02,
    "list_miss": 0.3,
    "other_merchant": 0.5,
    "other_system": 0.5,
    "callback_lost": 0.5,
    "callback_doubled": 0.5,
    "callback_forged": 0.2,
    # Processes, their host and its disk
    "crash": 0.005,
    "stop": 0.002,
    "power_cut": 0.0005,
    "sender_stops": 0.1,
    "database_fails": 0.03,
    "commit_lost": 0.02,
    "serialization": 0.05,
    "notify_lost": 0.5,
    "database_full": 0.01,
    "database_slow": 0.01,
    "database_away": 0.01,
    "clock_jumps": 0.002,
    "service_clock_jumps": 0.05,
    "customer_leaves": 0.1,
    "customer_later": 0.5,
    # People
    "operator_wrong": 1.0,
    "order_cancelled": 0.1,
    "order_twice": 0.2,
    "order_hastened": 0.1,
    "books_fail": 0.05,
    "restored_backup": 1.0,
    # The wall clock of the hosts, where a server has another one: by hours
    "wall_clock_jumps": 0.05,
}

# The shares of seeds that meet these faults: the first two break what the guarantee assumes, and the laws that rest on
# it. The others were added last: what is drawn for the faults that come often is as it was.
RARE = {
    "operator_wrong": 0.3,
    "restored_backup": 0.15,
    "lookups_mixed": 0.2,
    "other_merchant": 0.2,
    "other_system": 0.2,
    "wall_clock_jumps": 0.3,
}
# Faults that no seed draws, but `--weights` can: the package does not promise to find them out.
OUTSIDE = frozenset({"answers_alike"})
# Of the others each seed draws how many it meets; and a few that come often, so that they meet each other.
SHARES, OFTEN, MOST = (0.2, 0.4, 0.6, 0.8), (0, 1, 2, 3), 0.5


def draw_weights(seed: str) -> dict[str, float]:
    """Return the probabilities of a seed's faults. What is drawn for one fault does not change the others."""
    dice = random.Random(f"{seed}/swarm")
    share, often = dice.choice(SHARES), dice.sample(sorted(FAULTS.keys() - RARE), dice.choice(OFTEN))
    weights: dict[str, float] = {}
    for name, most in FAULTS.items():
        dice = random.Random(f"{seed}/weight of {name}")
        if name in often:
            weights[name] = min(MOST, most * dice.uniform(1, 5))
        elif dice.random() < RARE.get(name, share):
            weights[name] = most * 10 ** -dice.uniform(0, 1.3)
    return weights


@attrs.frozen(kw_only=True)
class Profile:
    """Kind of world in which certain faults meet often: by chance alone they would take hours to meet.

    Attributes:
        weights: The probabilities of faults; 0 leaves a fault out, also `list_` for all of that beginning. Other faults
            are a fifth as frequent as in other plans of the seed, so that much happens in between.
        sizes: Of the plan.
    """

    weights: dict[str, float]
    sizes: dict[str, Any]


PROFILES: dict[str, Profile] = {
    # Creates of one kind, one close behind the other, of which any may be refused or lost.
    "alike": Profile(
        weights={"refused_before": 0.4, "sender_stops": 0.3, "crash": 0, "stop": 0, "list_empty": 0},
        sizes={"numbers": 1, "amounts": (25_000,), "orders": 12, "processes": 3, "minutes": 4.0},
    ),
    "answers mixed up": Profile(
        weights={"answers_mixed": 0.5, "crash": 0}, sizes={"numbers": 1, "orders": 12, "processes": 2}
    ),
    "senders that stall": Profile(
        weights={"sender_stops": 0.4, "request_late": 0.4, "crash": 0, "stop": 0},
        sizes={"processes": 3, "minutes": 4.0, "orders": 8},
    ),
    "backups": Profile(
        weights={"restored_backup": 1.0, "list_": 0, "crash": 0},
        sizes={"processes": 2, "orders": 12, "openings": 2, "minutes": 2.0, "sole_writer": None},
    ),
    "a list with holes": Profile(
        weights={"list_hole": 0.3, "list_empty": 0, "list_cap": 0, "error_after": 0.2, "lie_refused": 0.3},
        sizes={"orders": 12, "minutes": 4.0, "openings": 2, "grace": 30.0},
    ),
    "clocks that are set": Profile(
        weights={"service_clock_jumps": 0.3, "refused_before": 0.3, "answer_lost": 0.2},
        sizes={"orders": 12, "openings": 2},
    ),
    "customers who come back": Profile(
        weights={"customer_later": 0.5, "refused_before": 0.3, "answer_lost": 0.3, "crash": 0},
        sizes={"sole_writer": False, "openings": 3, "orders": 12},
    ),
}
PROFILED = 0.5
# Added later, for seeds that draw none of the others: what these draw is as it was.
SHOP_WITH_PAUSES, PAUSING = "a shop with pauses", 0.2
PROFILES[SHOP_WITH_PAUSES] = Profile(
    weights={
        **dict.fromkeys(FAULTS, 0),
        "request_lost": 0.1,
        "answer_lost": 0.1,
        "server_error": 0.1,
        "end_turns": 0.5,  # no other seed draws it
    },
    sizes={
        "pause": 3_600.0,
        "minutes": 600.0,
        "orders": 12,
        "openings": 1,
        "processes": 1,
        "sole_writer": None,
        "idle": 60.0,
    },
)
# Added later again, for seeds that have drawn none so far.
LATER: dict[str, Profile] = {
    # Senders that sleep or stall, and are given up: their keys are released and sent again meanwhile.
    "keys that are used again": Profile(
        weights={
            "process_sleeps": 0.02,  # no other seed draws it
            "sender_stops": 0.3,
            "request_late": 0.3,
            "refused_before": 0.3,
            "request_lost": 0.2,
            "list_": 0,
            "crash": 0,
            "stop": 0,
        },
        sizes={
            "numbers": 1,
            "amounts": (25_000,),
            "orders": 8,
            "processes": 3,
            "openings": 3,
            "minutes": 8.0,
            "grace": 30.0,
            "timeout": 10.0,
            "resend": True,
        },
    ),
    # Orders that are cancelled, or paid later, after an answer that may be wrong, and listings that miss them once.
    "orders that are given up": Profile(
        weights={
            "list_": 0,
            "list_miss": 0.5,
            "answer_lost": 0.4,
            "lie_refused": 0.3,
            "order_cancelled": 0.5,
            "customer_later": 0.5,
            "crash": 0,
        },
        sizes={"orders": 12, "openings": 2, "minutes": 8.0, "grace": 30.0, "timeout": 10.0, "resend": True},
    ),
}
PROFILES |= LATER
REPEATING = 0.5


@attrs.frozen(kw_only=True)
class Plan:
    """Plan of a world.

    Attributes:
        weights: The probability of each fault, those with 0 left out.
        orders: How many orders there are.
        numbers: How many phone numbers they are for: with few of them payments are easily mistaken for each other.
        amounts: Of what amounts they are.
        processes: How many processes the merchant runs.
        idle: Seconds between two looks of an idle dispatcher, poller or reader of changes: 0.5 in the package, where
            most of a simulation's time would go.
        openings: How often they run for some minutes before the calm; in between there is a pause of up to a day.
        drift: How much faster the host's clock runs than the world's.
        profile: Its profile, if it has one.
        has_store: Whether the merchant has one. Without, each order is paid for by one call, whatever comes of it.
        rush: How many payments are ordered at once in the calm, to see the rate limit used and kept. They are queued;
            if there are more than a minute's, they are made at once.
        pause: Of a shop with pauses: the longest one between two orders, seconds; else 0. Its operators decide nothing
            before the calm: the store has to decide in time.
    """

    seed: str
    weights: dict[str, float]
    nature: Nature
    orders: int
    numbers: int
    amounts: tuple[int, ...]
    processes: int
    openings: int
    minutes: float
    grace: float
    timeout: float
    resend: bool
    sole_writer: bool | None
    late: float
    idle: float
    drift: float
    rush: int
    has_store: bool
    profile: str | None = None
    pause: float = 0.0

    @classmethod
    def drawn(cls, seed: str, profile: str | None = None) -> Plan:
        """Return the plan of a seed: in half of them that of a profile, or of the one that is named."""
        plan, dice = cls._any(seed), random.Random(f"{seed}/profile")
        drawn = dice.choice(sorted(PROFILES.keys() - {SHOP_WITH_PAUSES, *LATER})) if dice.random() < PROFILED else None
        if drawn is None and random.Random(f"{seed}/long pauses").random() < PAUSING:
            drawn = SHOP_WITH_PAUSES
        if drawn is None and (dice := random.Random(f"{seed}/later")).random() < REPEATING:
            drawn = dice.choice(sorted(LATER))
        return plan if (name := profile or drawn) is None else plan.profiled(name)

    @classmethod
    def _any(cls, seed: str) -> Plan:
        dice = random.Random(f"{seed}/plan")
        nature = Nature.drawn(dice)
        return cls(
            seed=seed,
            weights=draw_weights(seed),
            nature=nature,
            orders=dice.choice([3, 5, 8, 12]),
            processes=dice.choice([1, 1, 1, 2, 2, 3, 5]),
            openings=dice.choice([1, 1, 2, 3]),
            minutes=dice.choice([1.0, 2.0, 4.0]),
            grace=120.0 if nature.lag >= 30 else dice.choice([30.0, 120.0]),  # the list shows all by then
            timeout=dice.choice([10.0, 30.0]),
            resend=dice.random() < 0.3,
            sole_writer=dice.choice([None, None, None, True, False]),
            late=dice.choice([0.0, 0.0, 0.05]),
            idle=dice.choice([0.5, 4.0, 4.0, 4.0, 4.0, 4.0]),
            drift=dice.choice([0.0, dice.uniform(-5e-5, 5e-5)]),
            rush=dice.choices([0, 30, 80], [18, 2, 1])[0],
            numbers=dice.choice([1, 2, 4, 4]),
            amounts=(1_000, 25_000),
            has_store=dice.random() < 0.8,
        )

    def profiled(self, name: str) -> Plan:
        """Return the plan of a profile: what that leaves open is as here."""
        profile = PROFILES[name]
        sizes = profile.sizes
        if self.nature.lag >= 30 and "grace" in sizes:
            sizes = {**sizes, "grace": self.grace}
        others = {each: 0 if each[:5] in profile.weights else weight / 5 for each, weight in self.weights.items()}
        plan = self.weighing(others).weighing({each: n for each, n in profile.weights.items() if each[-1] != "_"})
        return plan.resized(**{"profile": name, "has_store": True, "rush": 0, "idle": 12.0, **sizes})

    def resized(self, **sizes: Any) -> Plan:
        """Return the plan with another number of orders, processes or openings."""
        return attrs.evolve(self, **sizes)

    def weighing(self, weights: Mapping[str, float]) -> Plan:
        """Return the plan with other probabilities of some faults; 0 leaves a fault out."""
        return attrs.evolve(self, weights={name: each for name, each in {**self.weights, **weights}.items() if each})

    def without(self, *faults: str) -> Plan:
        """Return the plan without some faults."""
        return attrs.evolve(self, weights={each: self.weights[each] for each in self.weights if each not in faults})
