"""RocketMQ's accounts: `plain_acl.yml` (ACL 1.0, with `conf/acl/*.yml`), and users and ACLs of ACL 2.0 as JSON.

The YAML is read by what these files are: maps, lists and plain values by indentation. Anchors, tags and the like are refused.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from gantrymq.cli.security.imports.found import Found, ImportFileError, text_of

LINES_MAX: Final = 200_000
KEY: Final = re.compile(r"([A-Za-z0-9_]+)\s*:(?:\s+(.*))?$", re.ASCII)

PERMS: Final[dict[str, list[str]]] = {
    "DENY": [], "PUB": ["pub"], "SUB": ["sub"], "ANY": ["pub", "sub"], "PUB|SUB": ["pub", "sub"], "SUB|PUB": ["pub", "sub"],
}  # fmt: skip

KINDS: Final = {"topicPerms": "topic", "groupPerms": "group"}
DEFAULTS: Final = {"topicPerms": "defaultTopicPerm", "groupPerms": "defaultGroupPerm"}
KNOWN: Final = {"accessKey", "secretKey", "whiteRemoteAddress", "admin", *KINDS, *DEFAULTS.values(), "namespacePerms"}


def read_rocketmq(files: list[bytes]) -> Found:
    """Raises `ImportFileError`."""
    found = Found()
    for data in files:
        text = text_of(data)
        if text.lstrip()[:1] in ("{", "["):
            _read_json(found, data)
        else:
            _read_plain(found, text)
    return found


# ACL 1.0.


def _read_plain(found: Found, text: str) -> None:
    said = read_yaml(text)
    accounts = said.get("accounts") or []
    if not isinstance(accounts, list) or not accounts:
        raise ImportFileError("there are no accounts in it")
    if said.get("globalWhiteRemoteAddresses"):
        found.left.append("globalWhiteRemoteAddresses: here nobody comes in for its address alone")
    for account in accounts:
        if not isinstance(account, dict) or not account.get("accessKey"):
            raise ImportFileError("an account has no accessKey")
        _account(found, account)


def _account(found: Found, account: dict[str, Any]) -> None:
    name = str(account["accessKey"])
    secret = account.get("secretKey")
    if not isinstance(secret, str) or not secret:
        found.left.append(f"account {name[:80]!r}: it has no secretKey")
        return
    admin = str(account.get("admin", "false")).lower() == "true"
    if not found.user(name, password=secret, userType="Super" if admin else "Normal"):
        return
    if account.get("whiteRemoteAddress"):
        found.left.append(f"account {name}: whiteRemoteAddress: here nobody comes in for its address alone")
    for key in sorted(account.keys() - KNOWN):
        found.left.append(f"account {name}: {key[:80]}")
    if account.get("namespacePerms"):
        found.left.append(f"account {name}: namespacePerms")
    if admin:
        return
    for key, kind in KINDS.items():
        _perms(found, name, kind, str(account.get(DEFAULTS[key]) or "DENY"), account.get(key) or [])


def _perms(found: Found, name: str, kind: str, default: str, listed: Any) -> None:
    """RocketMQ takes the line of a name instead of the default; here the two are added, and a deny takes away."""
    subject = f"user:{name}"
    general = PERMS.get(default.replace(" ", "").upper())
    if general is None:
        raise ImportFileError(
            f"account {name[:80]!r}: {default[:80]!r} is no permission: DENY, PUB, SUB, PUB|SUB or ANY"
        )
    if general:
        found.rule(subject, f"{kind}:*", list(general))
    if not isinstance(listed, list):
        raise ImportFileError(f"account {name[:80]!r}: {kind}Perms is no list")
    for each in listed:
        resource, equals, text = str(each).partition("=")
        own = PERMS.get(text.replace(" ", "").upper())
        if not equals or not resource.strip() or own is None:
            raise ImportFileError(
                f"account {name[:80]!r}: {str(each)[:80]!r} is no permission: NAME=DENY, PUB, SUB, PUB|SUB or ANY"
            )
        resource = f"{kind}:{resource.strip()}"
        missing = ["pub", "sub"] if not own else [action for action in general if action not in own]
        if own:
            found.rule(subject, resource, list(own))
        if missing:
            found.rule(subject, resource, missing, allow=False)


# ACL 2.0.


class _User(msgspec.Struct, rename="camel"):
    username: str
    password: str = ""
    user_type: str = "Normal"
    user_status: str = "enable"


class _Entry(msgspec.Struct, rename="camel"):
    resource: str
    actions: list[str]
    decision: str = "Allow"
    source_ips: list[str] | None = None


class _Policy(msgspec.Struct, rename="camel"):
    policy_type: str = "Custom"
    entries: list[_Entry] = []


class _Acl(msgspec.Struct, rename="camel"):
    subject: str
    policies: list[_Policy] = []


class _File(msgspec.Struct, rename="camel"):
    users: list[_User] = []
    acls: list[_Acl] = []


def _read_json(found: Found, data: bytes) -> None:
    try:
        said = msgspec.json.decode(data, type=_File)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ImportFileError(f'it is not {{"users": [...], "acls": [...]}} as ACL 2.0 has them: {error}') from error
    for user in said.users:
        if not user.password:
            found.left.append(f"user {user.username[:80]!r}: it has no password")
            continue
        status = "enable" if user.user_status.lower() == "enable" else "disable"
        kind = "Super" if user.user_type.lower() == "super" else "Normal"
        found.user(user.username, password=user.password, userType=kind, userStatus=status)
    for acl in said.acls:
        word, _, name = acl.subject.partition(":")
        subject = f"{word.lower()}:{name}"
        for policy in acl.policies:
            if policy.policy_type.lower() == "default":
                found.notes.append(
                    f"{acl.subject[:80]}: default rules count as its others: RocketMQ asks them only where no other matches"
                )
            for entry in policy.entries:
                _entry(found, subject, entry)


def _entry(found: Found, subject: str, entry: _Entry) -> None:
    kind, colon, name = entry.resource.partition(":")
    resources = [f"{kind.lower()}:{name}"] if colon else []
    if entry.resource in ("*", "Any:*"):
        resources = ["topic:*", "group:*", "queue:*", "cluster:*"]
    actions = [action.strip().lower() for text in entry.actions for action in text.split(",")]
    if entry.decision.lower() not in ("allow", "deny"):
        raise ImportFileError(f"{subject[:80]}: {entry.decision[:80]!r} is no decision: Allow or Deny")
    sources = [source for source in entry.source_ips or () if source not in ("", "*")]
    if not resources:
        found.left.append(f"{subject[:80]}: {entry.resource[:200]!r}: it is no KIND:NAME")
    for resource in resources:
        found.rule(subject, resource, actions, entry.decision.lower() == "allow", sources)


# YAML.


def read_yaml(text: str) -> dict[str, Any]:
    """The map of a file. Raises `ImportFileError` with the line."""
    lines: list[tuple[int, int, str]] = []
    for number, line in enumerate(text.splitlines(), 1):
        body = _without_comment(line).rstrip()
        if not body.strip() or body.strip() in ("---", "..."):
            continue
        if "\t" in body[: len(body) - len(body.lstrip())]:
            raise ImportFileError(f"line {number}: a tab indents")
        lines.append((number, len(body) - len(body.lstrip()), body.strip()))
        if len(lines) > LINES_MAX:
            raise ImportFileError(f"more than {LINES_MAX} lines")
    reader = _Yaml(lines)
    found = reader.value(lines[0][1]) if lines else {}
    if not isinstance(found, dict) or reader.at != len(lines):
        raise ImportFileError(
            f"line {lines[min(reader.at, len(lines) - 1)][0]}: it does not belong there" if lines else "it is empty"
        )
    return found


def _without_comment(line: str) -> str:
    quote = ""
    for at, letter in enumerate(line):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'" and (at == 0 or line[at - 1] in " [,:"):
            quote = letter
        elif letter == "#" and (at == 0 or line[at - 1] in " \t"):
            return line[:at]
    return line


class _Yaml:
    def __init__(self, lines: list[tuple[int, int, str]]) -> None:
        self._lines = lines
        self.at = 0

    def value(self, indent: int) -> Any:
        """A map or list whose lines begin at `indent`."""
        return self._list(indent) if self._lines[self.at][2].startswith("-") else self._map(indent)

    def _map(self, indent: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while (
            self.at < len(self._lines)
            and self._lines[self.at][1] == indent
            and not self._lines[self.at][2].startswith("- ")
        ):
            number, _, body = self._lines[self.at]
            match = KEY.match(body)
            if match is None or match[1] in found:
                raise ImportFileError(f"line {number}: must be NAME: VALUE, each name once")
            self.at += 1
            rest = (match[2] or "").strip()
            found[match[1]] = _scalar(number, rest) if rest else self._below(indent)
        return found

    def _below(self, indent: int) -> Any:
        """What belongs to a name that has nothing behind it: a list may stand as far left as the name."""
        if self.at < len(self._lines):
            _, deeper, body = self._lines[self.at]
            if deeper > indent or (deeper == indent and body.startswith("-")):
                return self.value(deeper)
        return None

    def _list(self, indent: int) -> list[Any]:
        found: list[Any] = []
        while (
            self.at < len(self._lines) and self._lines[self.at][1] == indent and self._lines[self.at][2].startswith("-")
        ):
            number, _, body = self._lines[self.at]
            rest = body[1:]
            if rest and not rest.startswith(" "):
                raise ImportFileError(f"line {number}: a space is missing behind -")
            inner = rest.strip()
            if inner and KEY.match(inner) and inner[0] not in "\"'":
                # The first line of a map, as if it stood below.
                deeper = indent + 1 + len(rest) - len(rest.lstrip())
                self._lines[self.at] = (number, deeper, inner)
                found.append(self._map(deeper))
                continue
            self.at += 1
            found.append(_scalar(number, inner) if inner else self._below(indent))
        return found


def _scalar(number: int, text: str) -> Any:
    if text[0] == "[":
        if text[-1] != "]" or text.count("[") != 1:
            raise ImportFileError(f"line {number}: a list ends on its line, and has no list in it")
        inner = text[1:-1].strip()
        return [_scalar(number, part.strip()) for part in inner.split(",") if part.strip()] if inner else []
    if text[0] in "\"'":
        if len(text) < 2 or text[-1] != text[0] or text[0] in text[1:-1] or "\\" in text:
            raise ImportFileError(f"line {number}: a quoted value without quotes and backslashes in it is understood")
        return text[1:-1]
    if text[0] in "&*!|>{%@`":
        raise ImportFileError(f"line {number}: {text[0]!r} begins something that is not understood here")
    return text
