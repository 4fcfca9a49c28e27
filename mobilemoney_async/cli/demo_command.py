"""`mobilemoney demo`: its options."""

from __future__ import annotations

from typing import Annotated

import typer

from mobilemoney_async.cli.failures import Refused, run
from mobilemoney_async.cli.sandbox_group import Speed


def demo(
    speed: Speed = 20.0,
    payments: Annotated[int, typer.Option(min=30, max=10_000, help="How many payments are made and followed.")] = 30,
) -> None:
    """Watch payments from the prompt to their final states.

    The sandbox that they are made in runs on this machine. Takes some 20 s.
    """
    from mobilemoney_async.cli.demo import run_demo

    async def watch() -> None:
        try:
            await run_demo(speed, payments)
        except ImportError as exc:
            raise Refused(str(exc)) from exc

    run("demo", watch)
