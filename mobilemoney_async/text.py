"""Texts of foreign origin, as logs and terminals can bear them; `values.redact` also hides private values."""

from __future__ import annotations


def printable(text: str, limit: int = 500) -> str:
    """Return the beginning of a text as one line, without characters that are not printed, such as bidi controls."""
    if not text.isprintable():
        text = " ".join("".join(each for each in text if each.isprintable() or each.isspace()).split())
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
