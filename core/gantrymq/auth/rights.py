"""The rights of one client, compiled from the policies of its user and groups: one decision for an action on a resource.

A deny wins over every allow; what no rule allows is denied. Exact names are one look into a dictionary; prefixes and patterns are
tried one by one, and what was decided is remembered until a policy changes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

from gantrymq.auth.resources import Action, Kind, covers, meets, parse_resource, substituted
from gantrymq.auth.rows import Policy, Rule, actions_of

DECISIONS_MAX: Final = 4096
"""Remembered of one connection; then it begins anew."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether, and which rule said so."""

    allowed: bool
    rule: str
    """Of whom and what; `no rule` where none matched."""


NO_RULE: Final = Decision(False, "no rule")


@dataclass(frozen=True, slots=True)
class _Compiled:
    actions: Action
    allow: bool
    text: str
    sources: tuple[IPv4Network | IPv6Network, ...]
    levels: list[str | None] | None = None
    """Of an MQTT pattern."""


class Rights:
    """Of one user, client id and address."""

    __slots__ = ("_address", "_decided", "_exact", "_patterns", "_prefixes")

    def __init__(self, policies: Iterable[Policy], user: str, client_id: str, address: str) -> None:
        """`policies`: those of the user and of its groups, checked."""
        self._exact: dict[tuple[Kind, str], list[_Compiled]] = {}
        self._prefixes: dict[Kind, list[tuple[str, _Compiled]]] = {}
        self._patterns: list[_Compiled] = []
        self._decided: dict[tuple[Action, Kind, str], Decision] = {}
        self._address = _address(address)
        for policy in policies:
            for rule in policy.rules:
                self._add(policy.subject, rule, user, client_id)

    def _add(self, subject: str, rule: Rule, user: str, client_id: str) -> None:

        resource = parse_resource(rule.resource)
        sources = tuple([ip_network(source) for source in rule.sources])
        if sources and not any(self._address is not None and self._address in network for network in sources):
            return
        word = "allow" if rule.allow else "deny"
        text = f"{subject}: {word} {','.join(rule.actions)} on {rule.resource}"
        actions = actions_of(rule)
        if resource.kind is Kind.MQTT:
            levels = substituted(resource.name, user, client_id)
            if levels is not None:
                self._patterns.append(_Compiled(actions, rule.allow, text, sources, levels))
        elif resource.prefix:
            self._prefixes.setdefault(resource.kind, []).append(
                (resource.name, _Compiled(actions, rule.allow, text, sources))
            )
        else:
            self._exact.setdefault((resource.kind, resource.name), []).append(
                _Compiled(actions, rule.allow, text, sources)
            )

    def decide(self, action: Action, kind: Kind, name: str) -> Decision:
        """One action on one resource. An MQTT filter is allowed where one rule covers all of it, and denied where a deny meets any of it."""
        decided = self._decided
        key = (action, kind, name)
        found = decided.get(key)
        if found is None:
            if len(decided) >= DECISIONS_MAX:
                decided.clear()
            found = decided[key] = self._decide(action, kind, name)
        return found

    def _decide(self, action: Action, kind: Kind, name: str) -> Decision:
        allowed = NO_RULE
        levels = name.split("/") if kind is Kind.MQTT else []
        for rule in self._rules(kind, name):
            if not rule.actions & action:
                continue
            if rule.levels is not None and not (covers if rule.allow else meets)(rule.levels, levels):
                continue
            if not rule.allow:
                return Decision(False, rule.text)
            if not allowed.allowed:
                allowed = Decision(True, rule.text)
        return allowed

    def _rules(self, kind: Kind, name: str) -> Iterable[_Compiled]:
        if kind is Kind.MQTT:
            yield from self._patterns
            return
        yield from self._exact.get((kind, name), ())
        for prefix, rule in self._prefixes.get(kind, ()):
            if name.startswith(prefix):
                yield rule

    def decide_prefix(self, action: Action, kind: Kind, prefix: str) -> Decision:
        """All names that begin with `prefix`: one allow covers them all, and no deny meets one of them."""
        allowed = NO_RULE
        for (other, name), rules in self._exact.items():
            if other is kind and name.startswith(prefix):
                for rule in rules:
                    if rule.actions & action and not rule.allow:
                        return Decision(False, rule.text)
        for begin, rule in self._prefixes.get(kind, ()):
            if not rule.actions & action:
                continue
            if not rule.allow and (begin.startswith(prefix) or prefix.startswith(begin)):
                return Decision(False, rule.text)
            if rule.allow and prefix.startswith(begin) and not allowed.allowed:
                allowed = Decision(True, rule.text)
        return allowed


def _address(text: str) -> IPv4Address | IPv6Address | None:
    """The address of `host:port`."""
    try:
        found = ip_address(text.rpartition(":")[0].strip("[]").partition("%")[0])
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found
