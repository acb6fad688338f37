"""Mosquitto's password file (`mosquitto_passwd`) and ACL file."""

from __future__ import annotations

import re
from typing import Final

from gantrymq.auth.rows import ANONYMOUS
from gantrymq.cli.security.imports.found import Found, ImportFileError, text_of

ACL_LINE: Final = re.compile(r"(user|topic|pattern)\s", re.ASCII)

GROUP: Final = "mosquitto"
"""Whom the lines `pattern` are for: in Mosquitto every client that has a name, here every user that is imported with them."""

ACCESS: Final[dict[str, tuple[list[str], bool]]] = {
    "read": (["sub"], True), "write": (["pub"], True), "readwrite": (["pub", "sub"], True), "deny": (["pub", "sub"], False),
}  # fmt: skip


def read_mosquitto(files: list[bytes]) -> Found:
    """Each file by what its first line is. Raises `ImportFileError`."""
    found = Found()
    for data in files:
        lines = [(number, line) for number, line in enumerate(text_of(data).splitlines(), 1) if _counts(line)]
        if not lines:
            raise ImportFileError("it is empty: Mosquitto would let nobody in, and there is nothing to import")
        if ACL_LINE.match(lines[0][1].strip()):
            _read_acl(found, lines)
        else:
            _read_passwords(found, lines)
    if f"group:{GROUP}" in found.rules:
        for info in found.users.values():
            info["groups"] = [GROUP]
        if not found.users:
            found.notes.append(
                f"the lines pattern are for users of the group {GROUP}: gantry user set NAME --group {GROUP}"
            )
    return found


def _counts(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith("#")


def _read_passwords(found: Found, lines: list[tuple[int, str]]) -> None:
    for number, line in lines:
        name, colon, known = line.strip().partition(":")
        if not colon or not known:
            found.left.append(f"line {number} of the passwords is not NAME:HASH")  # never a user without a password
        elif not known.startswith("$"):
            found.left.append(
                f"line {number}: user {name[:80]!r}: a password that is not hashed; mosquitto_passwd -U hashes it"
            )
        else:
            found.user(name, hash=known)


def _read_acl(found: Found, lines: list[tuple[int, str]]) -> None:
    subject = f"user:{ANONYMOUS}"
    wide = False
    for number, line in lines:
        word, _, rest = line.strip().partition(" ")
        rest = rest.strip()
        if word == "user" and rest:
            subject = f"user:{rest}"
            continue
        access, space, topic = rest.partition(" ")
        if not space or access not in ACCESS:
            access, topic = "readwrite", rest
        if word not in ("topic", "pattern") or not topic:
            # A line that is not understood may be a denial: whoever has the lines around it could get more than he had.
            raise ImportFileError(f"line {number}: {line.strip()[:80]!r} is no line of an ACL file")
        topic = topic.strip()
        if word == "topic" and ("%c" in topic or "%u" in topic):
            found.left.append(
                f"line {number}: topic {topic[:200]!r}: here %c and %u stand for client and user in every rule"
            )
            continue
        whose = f"group:{GROUP}" if word == "pattern" else subject
        actions, allow = ACCESS[access]
        found.rule(whose, f"mqtt:{topic}", list(actions), allow)
        wide = wide or (allow and "sub" in actions and topic not in ("#", "+/#"))
    if f"user:{ANONYMOUS}" in found.rules:
        found.notes.append(
            f"clients without a name come in where there is a user {ANONYMOUS}: gantry user add {ANONYMOUS} --no-password"
        )
    if wide:
        found.notes.append(
            "a subscription to more than its user may read is refused here; Mosquitto takes it and delivers what may be read of it"
        )
