"""Takes secrets out of evidence: where their name says what they are, and wherever else their value turns up; pure.

First all of the evidence is searched for values that are secret by their name, then every text of it is rewritten.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote, quote_plus

MASK = "***"

_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|AUTHORIZATION", re.IGNORECASE)
# Names about tokens of text and keys of attention, whose values are settings.
_SETTING = re.compile(r"TOKENS|TOKENIZER|KEYS|KEYWORD|KEY_?FILE|TOKEN_?FILE|TOKEN_IDS?$", re.IGNORECASE)
_WORD = re.compile(r"true|false|yes|no|none|null|auto|on|off", re.IGNORECASE)
_NUMBER = re.compile(r"[-+]?\d+(\.\d*)?")
_SURELY = re.compile(r"SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|KEY$|TOKEN$", re.IGNORECASE)
# A shorter value is masked where it has its name only: it would be found in half of all words.
SHORTEST = 4

_IN_URL = re.compile(
    r"(?P<scheme>\b[a-z][a-z0-9+.-]*://)(?P<user>[^\s/@:'\"]*):(?P<secret>[^\s/@'\"]+)@", re.IGNORECASE
)
_HEADER = re.compile(
    r"(?P<name>\b(?:proxy-)?authorization\b['\"]?\s*[:=]\s*['\"]?)(?P<kind>(?:bearer|basic|digest|token)\s+)?"
    r"(?P<secret>[^\s'\",;})\]]+)",
    re.IGNORECASE,
)
_BEARER = re.compile(r"(?P<name>\bbearer\s+)(?P<secret>[A-Za-z0-9._~+/=-]{4,})", re.IGNORECASE)
_FLAG = re.compile(r"(?P<flag>--[A-Za-z][A-Za-z0-9_-]*)(?P<between>=|\s+|['\"]\s*,\s*['\"])(?P<secret>[^\s'\",]+)")
_NAMED = re.compile(
    r"(?P<name>[A-Za-z_][A-Za-z0-9_.-]*)(?P<between>['\"]?\s*[:=]\s*)(?P<quote>['\"])(?P<secret>(?:(?!(?P=quote)).)+)(?P=quote)"
)
_ASSIGNED = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_-]*)(?P<between>=)(?P<secret>[^\s'\",;&(){}\[\]]+)")


def is_secret(name: str, value: str) -> bool:
    """Whether what stands under ``name``, of a variable, a flag or a field, is to be kept from others."""
    name = name.replace("-", "_")
    if value in ("", MASK) or not _SECRET.search(name) or _WORD.fullmatch(value):
        return False
    surely = _SURELY.search(name) is not None
    return surely if _SETTING.search(name) or _NUMBER.fullmatch(value) else True


def secrets_in(data: Any) -> set[str]:
    """Every value in JSON-like data that is secret by its name, by its flag, or by where it stands in a text."""
    found: set[str] = set()
    _search(data, found)
    return found


def of_environment(environment: Mapping[str, str]) -> set[str]:
    """The secret values among variables, also of those that are kept nowhere."""
    return {value for name, value in environment.items() if is_secret(name, value)} | secrets_in(
        [value for value in environment.values() if "://" in value]
    )


def of_command(command: Sequence[str]) -> set[str]:
    """The secret values on a command line."""
    found = set()
    for index, argument in enumerate(command):
        if argument.startswith("--"):
            flag, given, value = argument.partition("=")
            value = value if given else (command[index + 1] if index + 1 < len(command) else "")
            if is_secret(flag.lstrip("-"), value) and not (not given and value.startswith("--")):
                found.add(value)
    return found | secrets_in(list(command))


def masked(data: Any, secrets: Iterable[str] = ()) -> Any:
    """The same data without ``secrets`` and without those that it names itself."""
    every = set(secrets) | secrets_in(data)
    forms = {form for value in every if len(value) >= SHORTEST for form in _forms(value)}
    # Longest first: one secret may begin with another.
    ordered = sorted(forms, key=lambda one: (-len(one), one))
    pattern = re.compile("|".join(map(re.escape, ordered))) if ordered else None
    return _rewritten(data, pattern, every)


def _forms(value: str) -> set[str]:
    """How a value may be written: as it is, in a URL, in JSON, and as Python shows it."""
    return {value, quote(value), quote(value, safe=""), quote_plus(value), json.dumps(value)[1:-1], repr(value)[1:-1]}


def _search(data: Any, found: set[str]) -> None:
    if isinstance(data, str):
        for pattern in (_IN_URL, _HEADER, _BEARER):
            found.update(match["secret"] for match in pattern.finditer(data))
        found.update(match["secret"] for match in _FLAG.finditer(data) if is_secret(match["flag"][2:], match["secret"]))
        for pattern in (_NAMED, _ASSIGNED):
            found.update(
                match["secret"] for match in pattern.finditer(data) if is_secret(match["name"], match["secret"])
            )
    elif isinstance(data, Mapping):
        for key, value in data.items():
            if isinstance(value, str) and is_secret(str(key), value):
                found.add(value)
            _search(value, found)
    elif isinstance(data, list | tuple):
        if all(isinstance(one, str) for one in data):
            found.update(_after_flags(data))
        for one in data:
            _search(one, found)
    found.discard(MASK)


def _after_flags(command: Sequence[str]) -> set[str]:
    pairs = itertools.pairwise(command)
    return {
        value
        for flag, value in pairs
        if flag.startswith("--") and "=" not in flag and not value.startswith("--") and is_secret(flag[2:], value)
    }


def _rewritten(data: Any, pattern: re.Pattern[str] | None, secrets: set[str]) -> Any:
    if isinstance(data, str):
        return _text(data, pattern, secrets)
    if isinstance(data, Mapping):
        return {
            _rewritten(key, pattern, secrets): MASK
            if isinstance(value, str) and is_secret(str(key), value)
            else _rewritten(value, pattern, secrets)
            for key, value in data.items()
        }
    if isinstance(data, list | tuple):
        return [_rewritten(one, pattern, secrets) for one in data]
    if isinstance(data, int | float) and not isinstance(data, bool) and str(data) in secrets:
        return 0
    return data


def _text(text: str, pattern: re.Pattern[str] | None, secrets: set[str]) -> str:
    if text in secrets:
        return MASK
    if pattern is not None:
        text = pattern.sub(MASK, text)
    # What is left is too short to be looked for everywhere, and is masked in its place.
    text = _IN_URL.sub(rf"\g<scheme>\g<user>:{MASK}@", text)
    text = _HEADER.sub(lambda found: f"{found['name']}{found['kind'] or ''}{MASK}", text)
    text = _FLAG.sub(
        lambda found: (
            f"{found['flag']}{found['between']}{MASK}" if is_secret(found["flag"][2:], found["secret"]) else found[0]
        ),
        text,
    )
    text = _NAMED.sub(
        lambda found: (
            f"{found['name']}{found['between']}{found['quote']}{MASK}{found['quote']}"
            if is_secret(found["name"], found["secret"])
            else found[0]
        ),
        text,
    )
    return _ASSIGNED.sub(
        lambda found: f"{found['name']}={MASK}" if is_secret(found["name"], found["secret"]) else found[0], text
    )
