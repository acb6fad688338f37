"""What is said to an operator's HTTP service about somebody who logs in, and what its answer means: pure.

Whatever is not an answer by the page (docs/operations/security.md) lets nobody in.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import urlencode

import msgspec

from gantrymq.auth.rows import Policy, Rule, check_name, check_policy

GROUPS_MAX: Final = 100
"""Of one answer; with more it is none."""

FORM: Final = b"application/x-www-form-urlencoded"
JSON: Final = b"application/json"

_HEADER: Final = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\x20-\x7e]+)")
_OURS: Final = ("host", "content-length", "content-type", "connection", "transfer-encoding", "accept")


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of the service, about one login."""

    allowed: bool
    groups: tuple[str, ...] = ()
    policy: Policy | None = None
    """Rights that come with the login, beside those of the user and groups here."""
    expires_s: int | None = None
    """The connection ends then."""


class AnswerError(ValueError):
    """It is no answer."""


class _Said(msgspec.Struct, frozen=True):
    result: Literal["allow", "deny", "ignore"]
    groups: tuple[str, ...] = ()
    rules: tuple[Rule, ...] = ()
    expires_s: int | None = None


_said: Final = msgspec.json.Decoder(_Said)


def header_of(text: str) -> bytes:
    """One line `NAME: VALUE` as a line of a request. Raises ValueError, without what it holds."""
    found = _HEADER.fullmatch(text.removesuffix("\n").removesuffix("\r"))
    if found is None or found[1].lower() in _OURS:
        raise ValueError(f"one line NAME: VALUE with a name that is not {', '.join(_OURS)}")
    return f"{found[1]}: {found[2].rstrip()}\r\n".encode("ascii")


def body_of(form: bool, user: str, password: str, client_id: str, address: str) -> bytes | None:
    """What is asked: names and passwords stand in it as texts, whatever they hold. None: JSON cannot say this password."""
    said = {"username": user, "password": password, "client_id": client_id, "address": address}
    try:
        if form:
            return urlencode(said, encoding="utf-8", errors="surrogateescape").encode("ascii")
        return json.dumps(said, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return None


def body_again(form: bool, user: str, client_id: str, address: str) -> bytes:
    """What is asked about who is here: `refresh` instead of a password."""
    said = {"username": user, "client_id": client_id, "address": address, "refresh": "true"}
    return urlencode(said).encode("ascii") if form else json.dumps(said, ensure_ascii=False).encode()


def read_answer(user: str, body: bytes) -> Verdict:
    """`allow` with groups behind it, or `deny` (RabbitMQ's HTTP back end), or an object in JSON. Raises `AnswerError`."""
    text = body.strip()
    try:
        return _read_object(user, text) if text.startswith(b"{") else _read_words(text)
    except (ValueError, RecursionError) as error:  # the latter: JSON that is nested too deep
        raise AnswerError(f"no answer that can be read: {str(error)[:200]}") from None


def _read_words(text: bytes) -> Verdict:
    words = text.decode("utf-8").split()
    if words[:1] == ["deny"]:
        return Verdict(False)
    if words[:1] != ["allow"]:
        raise ValueError("neither allow, deny nor an object")
    return Verdict(True, _groups(words[1:]))


def _read_object(user: str, text: bytes) -> Verdict:
    said = _said.decode(text)
    if said.result != "allow":
        return Verdict(False)
    if said.expires_s is not None and said.expires_s < 1:
        raise ValueError("expires_s is 1 or more")
    if not said.rules:
        return Verdict(True, _groups(said.groups), None, said.expires_s)
    # A rule that cannot be read could be a denial: then there is no answer.
    check_policy(Policy(f"user:{user}", said.rules))
    return Verdict(True, _groups(said.groups), Policy(f"HTTP back end for user {user}", said.rules), said.expires_s)


def _groups(names: list[str] | tuple[str, ...]) -> tuple[str, ...]:
    if len(names) > GROUPS_MAX:
        raise ValueError(f"{len(names)} groups, at most {GROUPS_MAX} are taken")
    for name in names:
        check_name(name)
    return tuple(names)
