"""What was found in another broker's files: users, rules, and what has no counterpart here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gantrymq.auth.passwords import check_hash, check_password
from gantrymq.auth.rows import Policy, Rule, check_name, check_policy


class ImportFileError(ValueError):
    """The file is not what it should be: nothing of it is imported. The text is one line."""


@dataclass(slots=True)
class Found:
    """Nothing that is only partly understood gives a right: it stands in `left`."""

    users: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By name: fields of RocketMQ's UserInfo and of ours, `password` or `hash` among them."""
    rules: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """By subject, `user:NAME` or `group:NAME`: entries of a policy."""
    left: list[str] = field(default_factory=list)
    """Has no counterpart, or cannot be used: a line each, with no secret in it."""
    notes: list[str] = field(default_factory=list)
    """Is a little different here."""

    def user(self, name: str, **info: Any) -> bool:
        """One more, or more of one; False: it is left out, and why stands in `left`."""
        try:
            check_name(name)
            if info.get("hash"):
                check_hash(info["hash"])
            if info.get("password"):
                check_password(info["password"])
        except ValueError as error:
            self.left.append(f"user {name[:80]!r}: {error}")
            return False
        self.users.setdefault(name, {}).update(info)
        return True

    def rule(
        self, subject: str, resource: str, actions: list[str], allow: bool = True, sources: Sequence[str] = ()
    ) -> None:
        """One more line of a policy; what is said twice of a resource is one line."""
        try:
            check_policy(Policy(subject, (Rule(resource, tuple(actions), allow, tuple(sources)),)))
        except ValueError as error:
            self.left.append(f"{subject}: {','.join(actions)} on {resource[:200]!r}: {error}")
            return
        decision = "Allow" if allow else "Deny"
        entries = self.rules.setdefault(subject, [])
        for entry in entries:
            if (entry["resource"], entry["decision"], entry["sourceIps"]) == (resource, decision, [*sources]):
                entry["actions"] = list(dict.fromkeys([*entry["actions"], *actions]))
                return
        entries.append({"resource": resource, "actions": actions, "decision": decision, "sourceIps": [*sources]})


def text_of(data: bytes) -> str:
    """Raises `ImportFileError`."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ImportFileError("it is no UTF-8 text") from error
