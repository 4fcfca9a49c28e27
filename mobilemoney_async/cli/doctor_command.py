"""`mobilemoney doctor`: what is wrong with a configuration, and what to do about it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from mobilemoney_async.cli.failures import ExitCode, run
from mobilemoney_async.cli.options import (
    AccountOption,
    AsJSON,
    BaseURLOption,
    ConfigOption,
    ProfileOption,
    StoreOption,
)

if TYPE_CHECKING:
    from mobilemoney_async.cli.doctor import Finding
    from mobilemoney_async.cli.settings import Settings


def doctor(
    *,
    profile: ProfileOption = None,
    config: ConfigOption = None,
    base_url: BaseURLOption = None,
    store: StoreOption = None,
    account: AccountOption = None,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, max=300, help="For each thing that is waited for.")
    ] = 10.0,
    as_json: AsJSON = False,
) -> None:
    """Check the configuration, and say what to mend.

    URL, name, connection, certificate, clock, credentials, rate limit and store. Sends one request, and a login where
    there is no token yet; moves no money, and makes and changes nothing in the store.

    Exit codes: 0 fine, perhaps with warnings, 1 a problem was found, 2 the configuration cannot be read.
    """
    from mobilemoney_async.cli.doctor import Level, worst
    from mobilemoney_async.cli.settings import load_settings

    settings = load_settings(profile, config, base_url, store, account)
    findings = run("doctor", lambda: _look(settings, timeout, as_json=as_json), settings=settings)
    if as_json:
        _print_json(settings, findings)
    if worst(findings) is Level.PROBLEM:
        raise typer.Exit(ExitCode.ERROR)


async def _look(settings: Settings, timeout: float, *, as_json: bool) -> list[Finding]:
    from mobilemoney_async.cli.doctor_checks import check

    findings = []
    async for finding in check(settings, timeout):
        findings.append(finding)
        if not as_json:
            _print(finding)
    return findings


def _print(finding: Finding) -> None:
    from mobilemoney_async.cli.doctor import Level
    from mobilemoney_async.cli.text import visible

    colour = {Level.OK: "green", Level.WARNING: "yellow", Level.PROBLEM: "red", Level.SKIPPED: "bright_black"}
    level = f"{finding.level.value:<8}"
    if not os.environ.get("NO_COLOR"):
        # Without a terminal, typer's echo takes the colours out again.
        level = typer.style(level, fg=colour[finding.level])
    typer.echo(f"{level} {finding.check:<14} {visible(finding.text)}")
    if finding.advice is not None:
        typer.echo(f"{'':<23} → {visible(finding.advice)}")


def _print_json(settings: Settings, findings: list[Finding]) -> None:
    from mobilemoney_async.cli.doctor import worst
    from mobilemoney_async.cli.text import print_json

    print_json(
        {
            "profile": settings.profile,
            "base_url": settings.base_url,
            "is_production": settings.is_production,
            "worst": worst(findings).value,
            "findings": [
                {
                    "check": finding.check,
                    "level": finding.level.value,
                    "text": finding.text,
                    **({} if finding.advice is None else {"advice": finding.advice}),
                }
                for finding in findings
            ],
        }
    )
