"""Texts as people, logs, terminals and files can bear them: masked, redacted, printable."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from mobilemoney_async.redaction import without_secrets

# The first character of a spreadsheet's formula, in Latin and in full width; phone numbers and amounts are none. Where
# a decimal comma is usual, spreadsheets begin a cell at each semicolon, and read its quotation marks.
_FORMULA = tuple("=+-@\uff1d\uff0b\uff0d\uff20")
_FORMULA_INSIDE = re.compile(f';([\\s"]*[{re.escape("".join(_FORMULA))}])')
_SIGNED = re.compile(r"[+-][0-9.…]+", re.ASCII)

# Uncompiled: `re` compiles them at the first error, and keeps them.
# A word such as the names of our tables is none; by the last part a JWT begins.
_LONG_WORD = r"(?a)(?<![\w\-.~+/=])(?!//|mobilemoney_[a-z_.]++(?![\w\-~+/=]))[\w\-.~+/=]{24,}+|\beyJ[\w\-.~+/=]{9,}+"
# Nine digits with any separators, or six with spaces and hyphens. A masked number stays as it is.
_NUMBER = r"\+?\d(?:(?:(?:[^\w…]|_){0,3}\d){8,}|(?:[ \-]*+\d){6,}|(?:[ \-]*+\d){5}(?!…))"
# Without dots, which tokens have.
_ID = r"(?a)(?!(?:255|0)?[67]\d{8}\Z)[\w:-]{1,64}"
# As people write them into their own texts: with separators between the digits. A month and a year are none.
_GAP = r"[ .:_()\u00a0\u2010-\u2015-]{0,2}"
_NATIONAL = rf"0[67][0-9](?:[0-9]{_GAP}[0-9]{{3}}{_GAP}[0-9]{{3}}|{_GAP}[0-9]{{3}}{_GAP}[0-9]{{4}})"
_OWN = rf"(?<![0-9])(?:\+(?:{_GAP}[0-9]){{8,15}}|(?:00{_GAP})?2{_GAP}5{_GAP}5(?:{_GAP}[0-9]){{9}}|{_NATIONAL})(?![0-9])"
_ESCAPE = r"\\u([0-9a-fA-F]{4})|&#[xX]([0-9a-fA-F]{1,5});?|(?:%|\\x)([0-9a-fA-F]{2})|&#([0-9]{1,6});?"


def printable(text: str, limit: int = 500) -> str:
    """Return the beginning of a text as one line, without characters that are not printed, such as bidi controls."""
    if not text.isprintable():
        text = " ".join("".join(each for each in text if each.isprintable() or each.isspace()).split())
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def visible(text: str) -> str:
    """Return a text with unprintable characters escaped: it stays on its line and commands no terminal."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def mask_phone_number(phone_number: str) -> str:
    """Return a phone number for logs: ``+25568…001``. Short numbers show less, other texts nothing."""
    is_text = any(each.isalpha() and each not in "xX" for each in phone_number)
    if len(phone_number) < 8 or is_text or not phone_number.isprintable():
        return "…"
    head, tail = (6, 3) if len(phone_number) >= 12 else (3, 2)
    return f"{phone_number[:head]}…{phone_number[-tail:]}"


def redact(text: str, limit: int = 200) -> str:
    """Return the beginning of a text of unknown origin without tokens, codes, phone numbers and the like.

    Args:
        text: Anything that a service or a proxy may answer. Escapes of JSON, HTML and URLs are decoded.
        limit: The greatest length of the result, characters.
    """
    text = printable(text[: 8 * limit], 8 * limit)
    # Secrets before decoding too: a decoded quotation mark may end a text too early.
    return printable(_hide(_decode(without_secrets(text), 8 * limit)), limit)


def shown_text(text: str) -> str:
    """Return a text of the service for people: a code in capitals as it is, any other redacted."""
    return text if is_code(text) else redact(text)


def is_code(text: str) -> bool:
    """Return whether a text of the service is a code in capitals, or empty."""
    return re.fullmatch(r"[A-Z_]*", text) is not None


def text_repr(text: str | None) -> str:
    """Return the repr of an attribute that holds a text of the service."""
    return repr(None if text is None else shown_text(text))


def shown_name(text: str) -> str:
    """Return a name or a key of the merchant's own, such as ``salaries 2026-11``, with phone numbers masked."""
    return re.sub(_OWN, _mask_match, text)


def name_repr(text: str | None) -> str:
    """Return the repr of an attribute that holds such a name."""
    return repr(None if text is None else shown_name(text))


def shown_id(text: str, limit: int = 64) -> str:
    """Return an id of the service for an error or a log: redacted if it reads like anything else, or a phone number.

    One with escapes stays as it is, where their decoding shows nothing to hide: decoded, it would be another id.
    """
    if re.fullmatch(_ID, text):
        return text
    shown = printable(text, limit)
    decoded = _decode(shown, 20 * limit)  # to be seen as a whole: a character may become eighteen
    return printable(_hide(shown), limit) if len(text) <= limit and _hide(decoded) == decoded else redact(text, limit)


def id_repr(text: str | None) -> str:
    """Return the repr of an attribute that holds an id of the service."""
    return repr(None if text is None else shown_id(text))


def shown_note(text: str, limit: int = 500) -> str:
    """Return a text of someone or of the service that may be a mere id: redacted if it is none.

    Numbers are masked inside an id too.
    """
    masked = shown_name(text)
    return masked if re.fullmatch(_ID, text) else shown_id(masked, limit)


def note_repr(text: str | None) -> str:
    """Return the repr of an attribute that holds such a text."""
    return repr(None if text is None else shown_note(text))


def arguments(*words: str, options: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the arguments of a command of ours: those from the first on that begins with ``-`` stand behind ``--``."""
    at = next((at for at, word in enumerate(words) if word.startswith("-")), None)
    return (*words, *options) if at is None else (*words[:at], *options, "--", *words[at:])


def option(name: str, value: str) -> tuple[str, ...]:
    """Return an option of a command of ours; a value that begins with ``-`` is attached, or it would be an option."""
    return (f"--{name}={value}",) if value.startswith("-") else (f"--{name}", value)


def command_line(*words: str, options: Sequence[str] = ()) -> str:
    """Return a command of ours for the user to paste into a shell: its `arguments`, and more options."""
    at = words.index("--") if "--" in words else len(words)
    return shlex.join(["mobilemoney", *words[:at], *options, *words[at:]])


def name_lines(lines: Sequence[int]) -> str:
    """Return words for ascending numbers of lines, as ``lines 2-4, 7``: an error has room for 500 characters."""
    runs: list[list[int]] = []
    for line in lines:
        if runs and line == runs[-1][-1] + 1:
            runs[-1][1:] = [line]
        else:
            runs.append([line])
    named = ", ".join("-".join(map(str, run)) for run in runs[:10])
    more = f" and more, {len(lines):,} in all" if runs[10:] else ""
    return f"line{'s' * (len(lines) > 1)} {named}{more}"


def _decode(text: str, limit: int) -> str:
    text = re.sub(_ESCAPE, _unescape, text)
    if not text.isascii():  # the digits of all scripts, raised and encircled ones too; and letters of full width
        from unicodedata import digit, normalize

        text = "".join(str(digit(each, each if each == "…" else normalize("NFKC", each))) for each in text)
    return printable(text, limit)


def _hide(text: str) -> str:
    text = re.sub(_LONG_WORD, "[redacted]", without_secrets(text))
    return re.sub(_NUMBER, _mask_match, text)


def _mask_match(match: re.Match[str]) -> str:
    return mask_phone_number(re.sub(r"[^\d+]", "", match[0]))


def _unescape(match: re.Match[str]) -> str:
    hexadecimal = match[1] or match[2] or match[3]
    return chr(int(hexadecimal, 16) if hexadecimal else int(match[4]))


def csv_cell(text: str) -> str:
    """Return a text for a cell of a CSV file: on one line, and no formula that a spreadsheet would run.

    Unprintable characters, such as tabs and line ends, are escaped. A text that begins with ``=``, ``+``, ``-`` or
    ``@`` and is no number gets an apostrophe in front, and so does one behind a semicolon.
    """
    text = _FORMULA_INSIDE.sub(r";'\1", visible(text))
    return f"'{text}" if text.lstrip().startswith(_FORMULA) and not _SIGNED.fullmatch(text) else text
