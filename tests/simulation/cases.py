"""Fixed histories that the tests run: a small world with many faults, and histories that once broke a law."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import attrs

from tests.simulation.plan import Plan

SIZES = ("orders", "processes", "openings", "rush")


@attrs.frozen(repr=False)
class Case:
    """History: a seed, and how its plan was made smaller.

    Attributes:
        without: The faults that are left out.
        profile: The kind of world, if it is not the one that the seed draws.
        weights: The probabilities of faults that are not those of the seed.
    """

    seed: str
    without: tuple[str, ...] = ()
    orders: int | None = None
    processes: int | None = None
    openings: int | None = None
    rush: int | None = None
    profile: str | None = None
    weights: Mapping[str, float] = attrs.field(factory=dict, kw_only=True)

    @classmethod
    def of(cls, plan: Plan) -> Self:
        """Return the history of a plan that was made smaller."""
        drawn = Plan.drawn(plan.seed, plan.profile)
        sizes = {name: getattr(plan, name) for name in SIZES}
        changed = {name: size for name, size in sizes.items() if size != getattr(drawn, name)}
        weights = {name: weight for name, weight in plan.weights.items() if weight != drawn.weights.get(name)}
        without = tuple(each for each in drawn.weights if each not in plan.weights)
        profile = plan.profile if plan.profile != Plan.drawn(plan.seed).profile else None
        return cls(plan.seed, without, **changed, profile=profile, weights=weights)

    def _sizes(self) -> dict[str, int]:
        sizes = {name: getattr(self, name) for name in SIZES}
        return {name: size for name, size in sizes.items() if size is not None}

    def plan(self) -> Plan:
        """Return its plan."""
        return (
            Plan.drawn(self.seed, self.profile).weighing(self.weights).without(*self.without).resized(**self._sizes())
        )

    def options(self) -> str:
        """Return it as the arguments of the command."""
        chosen = [f"--seed {self.seed}", *(f"--{name} {size}" for name, size in self._sizes().items())]
        chosen += [f"--profile '{self.profile}'"] * bool(self.profile)
        chosen += [f"--weights {','.join(f'{name}={each!r}' for name, each in self.weights.items())}"] * bool(
            self.weights
        )
        chosen += [f"--without {','.join(self.without)}"] * bool(self.without)
        return " ".join(chosen)

    def __str__(self) -> str:
        return f"seed {self.options().removeprefix('--seed ')}"

    def __repr__(self) -> str:
        sizes = "".join(f", {name}={size}" for name, size in self._sizes().items())
        sizes += f", profile={self.profile!r}" if self.profile else ""
        weights = f", weights={dict(self.weights)!r}" if self.weights else ""
        return f"Case({self.seed!r}{f', {self.without!r}' if self.without else ''}{sizes}{weights})"


CASES: tuple[Case, ...] = (
    Case("103", orders=4, processes=1, openings=1),
    Case("31044"),  # a create that took effect late hid that a restored store had forgotten the next one
    Case("52025"),  # a restored store had forgotten its only disbursements, and did not look for any
    Case("9640906"),  # the service's clock was set back, so what a restored store had forgotten seemed to be older
)
