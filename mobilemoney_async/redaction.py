"""Secrets in texts of foreign origin, by their shape: a word that names a secret, and then a value.

A value is hidden whatever it is, unless all of its words are of those in which errors speak: `token: expired` is the
cause of an error. The patterns are linear in any text: quantifiers are possessive, repeated groups atomic, and words
are read from their start. They are uncompiled: `re` compiles them at the first error, and keeps them.
"""

from __future__ import annotations

import re
from typing import Final

# Begins a part of a name: `new_password`, `newPassword`, `X-Auth-Token`, `accesstoken`; not `secretary`, nor `opinion`.
_START = (
    r"(?:(?<![^\W\d_])|(?-i:(?<=[a-z])(?=[A-Z]))"
    r"|(?<=access)|(?<=refresh)|(?<=auth)|(?<=user)|(?<=client)|(?<=api)|(?<=id)|(?<=reset)|(?<=new)|(?<=old))"
)
# Long words may go on, as in `passwords` and `sessionid`; short ones end there, or where another word begins.
_LONG = (
    r"passw|passphrase|passcode|token(?!i[sz])|secret(?!ar)|bearer|authori[sz]ation|credential|cookie|session|signature"
    r"|nenosiri|nywila|ufunguo|tokeni"
)
_SHORT = (
    r"(?:otp|pin|pwd|pass|sid|sig|hmac|jwt|siri|auth|csrf|xsrf|msimbo"
    r"|(?:api|access|private|secret|client|auth|app|encryption|signing|subscription|x)[_-]?key)(?-i:(?![a-z]))"
)
_NAME = rf"(?<![\w-])(?=[\w-]*?(?:sess(?:ion)?[_-]?id|{_START}(?:{_LONG}|{_SHORT})))[\w-]++"
_NAMES = rf"(?:(?:api|access|private|secret|signing|encryption)\s(?:key|code)[\w-]*+|(?<![\w-])key(?==)|{_NAME})"
# A repeated group is atomic, not possessive: before Python 3.11.5 the latter may end behind a repetition that failed.
_GROUPS = r"\d++(?>(?:[ \-]\d++)+)"
_QUOTED = r"""\\++"(?>(?:[^\\]|\\++(?!"))*)(?:\\++")?|"(?>(?:[^"\\]|\\.)*)"?|'[^']*+'?"""
# Without a sign between them, a value has a digit, or a sign or a capital inside, or is quoted; or it follows `Bearer`.
_ODD = r"""(?=[^\s:=]*(?:\d|\w[\-._~+/]\w|(?-i:[a-z][A-Z])))[^\s,;&}<:="']++"""
_FIELD = (
    rf"""(?i)(?P<name>{_NAMES}[\\"']*+\s*+[:=>]++\s*+(?>(?:(?:bearer|basic|token)\s++)?))(?P<value>{_QUOTED}|{_GROUPS}|[^\s,;&}}<]++)"""
    rf"""|(?P<word>{_NAMES}[\\"']*+\s++(?>(?:(?:is|was|ni)\s++)?))(?P<odd>{_QUOTED}|{_GROUPS}|{_ODD})(?!\s*+[=:])"""
    r"""|(?P<scheme>(?<![\w-])(?:bearer|basic)\s++)(?P<token>[^\s,;&}<:="']++)(?!\s*=)"""
)
_COOKIE = (
    r"""(?i)(?<![\w-])((?:set-)?cookies?[\\"']*+\s*+[:=]\s*+)"""
    r"""(?:[\w\-.]++=[^\s;,]*+|secure\b|httponly\b)(?>(?:;\s*+(?:[\w\-.]++=[^\s;,]*+|secure\b|httponly\b))*)"""
)
# A part of a path is hidden after a word of a link that someone got by mail, or where it is no plain word.
_LINK = (
    r"(?i)(?<=/)([\w-]*?(?:reset|verif|confirm|activat|magic|invit|token|passw|otp|login|auth)[\w-]*+/)"
    r"([^\s/?#\"'<>,;]++)"
)
_URL = r"(?i)(?<![a-z0-9+.\-])[a-z][a-z0-9+.\-]*+://([^\s/?#\"'<>]++)([^\s\"'<>]*+)"
_PLAIN_PART = r"[a-z_-]{1,20}|v\d"

# Words by which an error names the fault of a value.
_WORDS = (
    "a absent accepted access account active again allowed already an and are as at attempts authentication "
    "authorization bad basic batili be bearer been blank blocked broken but by cannot change changed characters "
    "check closed code cookie cookies corrupt corrupted could credential credentials current deleted denied did "
    "digits disabled do does empty enabled ended error exceeded expire expired expires failed failure false field "
    "fields for format found from get given had haipo haitambuliki hakuna has have header headers imeisha imekosewa "
    "imekwisha in inactive inahitajika inatakiwa incorrect invalid is issued it its jaribu key la lazima least "
    "length limit locked log login long lost malformed mandatory many match may mismatch missing more most muda "
    "must need needed nenosiri new ni no none not null nywila of old on one optional or otp out over passcode "
    "password passwords pin please provide provided re refresh refreshed refused reissued rejected removed renew "
    "renewed required reset retry revoked sahihi scheme secret see sent session sessions set short should si sign "
    "signature signed sio siri stale sub supplied tafadhali temporarily tena than that the this time timed timeout "
    "to token tokens too true try type umeisha umekwisha unauthorized undefined unknown unreadable unset "
    "unsupported up used user using valid value verify wa was were when will with without wrong ya you your "
)
_SAID: Final = frozenset(_WORDS.split())
# Those of them that, alone, may be a value: many a password is "password".
_NOUNS = (
    "account active change code key login nenosiri new nywila old one passcode password passwords pin secret session "
)
_MAY_BE_ONE: Final = frozenset((_NOUNS + "siri token user").split())


def without_secrets(text: str) -> str:
    """Return a text without the values of fields that name a secret, cookies, and links that need no password."""
    text = re.sub(_COOKIE, r"\1[redacted]", text.replace("\\/", "/"))  # JSON may escape the slashes of a URL
    text = re.sub(_LINK, _hide_part, re.sub(_URL, _hide_path, text))
    return re.sub(_FIELD, _hide_value, text)


def names_secret(name: str) -> bool:
    """Return whether the value of a field, such as a header, may be a secret."""
    return re.search(f"(?i){_NAME}", name) is not None


def _hide_value(match: re.Match[str]) -> str:
    if match["scheme"] is not None:
        return match[0] if _SAID.issuperset(_words(match["token"])) else f"{match['scheme']}[redacted]"
    name, value = (match["word"], match["odd"]) if match["name"] is None else (match["name"], match["value"])
    words = _words(value)
    if len(words) > 2:  # a short number may be among them
        words = [each for each in words if len(each) > 2 or not each.isdecimal()]
    is_said = words and _SAID.issuperset(words) and not (len(words) == 1 and words[0] in _MAY_BE_ONE)
    return match[0] if is_said else f"{name}[redacted]"


def _hide_part(match: re.Match[str]) -> str:
    return match[0] if _SAID.issuperset(_words(match[2])) else f"{match[1]}[redacted]"


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", text.casefold())


def _hide_path(match: re.Match[str]) -> str:
    path, *_ = re.split(r"[?#]", match[2], maxsplit=1)
    parts = (each if not each or re.fullmatch(_PLAIN_PART, each) else "…" for each in path.split("/"))
    scheme = match[0].partition("://")[0]
    host = match[1].rpartition("@")[2]
    return f"{scheme}://{host}{'/'.join(parts)}" + ("?…" if len(path) < len(match[2]) else "")
