"""The rights of one client by the policies of its user and groups: one decision for an action on a resource. A policy is compiled once for all clients.

A deny wins over every allow; what no rule allows is denied. Exact names are one look into a dictionary; prefixes, and patterns with the same first
level, are tried one by one, and what was decided is remembered until a policy changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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


WILD: Final = ("+", "#")


@dataclass(frozen=True, slots=True)
class CompiledRule:
    """`text` says whose it is and what it says."""

    actions: Action
    allow: bool
    text: str
    levels: list[str | None] | None = None
    """Of an MQTT pattern."""


class RuleTable:
    """Rules by what they are about: exact names, prefixes, and MQTT patterns by their first level."""

    __slots__ = ("exact", "patterns", "patterns_of", "prefixes")

    def __init__(self) -> None:
        self.exact: dict[tuple[Kind, str], list[CompiledRule]] = {}
        self.prefixes: dict[Kind, list[tuple[str, CompiledRule]]] = {}
        self.patterns: list[CompiledRule] = []
        """Those whose first level is a wildcard."""
        self.patterns_of: dict[str, list[CompiledRule]] = {}

    def add(self, subject: str, rule: Rule, user: str, client_id: str) -> None:
        """A rule of a policy, its `%u` and `%c` as for this client."""
        resource = parse_resource(rule.resource)
        text = f"{subject}: {'allow' if rule.allow else 'deny'} {','.join(rule.actions)} on {rule.resource}"
        actions = actions_of(rule)
        if resource.kind is Kind.MQTT:
            levels = substituted(resource.name, user, client_id)
            if levels is None:
                return
            first, made = levels[0], CompiledRule(actions, rule.allow, text, levels)
            (self.patterns if first in (None, "#") else self.patterns_of.setdefault(str(first), [])).append(made)
            return
        made = CompiledRule(actions, rule.allow, text)
        if resource.prefix:
            self.prefixes.setdefault(resource.kind, []).append((resource.name, made))
        else:
            self.exact.setdefault((resource.kind, resource.name), []).append(made)

    def about(self, kind: Kind, name: str) -> Iterator[CompiledRule]:
        """Rules that may concern a name. An MQTT filter that begins with a wildcard meets patterns of every first level."""
        if kind is not Kind.MQTT:
            yield from self.exact.get((kind, name), ())
            for prefix, rule in self.prefixes.get(kind, ()):
                if name.startswith(prefix):
                    yield rule
            return
        yield from self.patterns
        first = name.partition("/")[0]
        if first not in WILD:
            yield from self.patterns_of.get(first, ())
            return
        for rules in self.patterns_of.values():
            yield from rules


class CompiledPolicy:
    """`table`: its rules that are the same for every client; the others are compiled for each."""

    __slots__ = ("_own", "policy", "table")

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.table = RuleTable()
        self._own: list[tuple[Rule, tuple[IPv4Network | IPv6Network, ...]]] = []
        for rule in policy.rules:
            if rule.sources or "%u" in rule.resource or "%c" in rule.resource:
                self._own.append((rule, tuple([ip_network(source) for source in rule.sources])))
            else:
                self.table.add(policy.subject, rule, "", "")

    def add_own(self, table: RuleTable, user: str, client_id: str, address: IPv4Address | IPv6Address | None) -> None:
        """Rules that depend on who comes, and from where."""
        for rule, sources in self._own:
            if not sources or any(address is not None and address in network for network in sources):
                table.add(self.policy.subject, rule, user, client_id)


class Rights:
    """Of one user, client id and address."""

    __slots__ = ("_decided", "_tables")

    def __init__(self, policies: Iterable[CompiledPolicy], user: str, client_id: str, address: str) -> None:
        """`policies`: those of the user and of its groups, checked. Costs what of them depends on the client."""
        own, peer = RuleTable(), _address(address)
        self._tables: list[RuleTable] = []
        self._decided: dict[tuple[Action, Kind, str], Decision] = {}
        for policy in policies:
            self._tables.append(policy.table)
            policy.add_own(own, user, client_id, peer)
        self._tables.append(own)

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
        for rule in self._about(kind, name):
            if not rule.actions & action:
                continue
            if rule.levels is not None and not (covers if rule.allow else meets)(rule.levels, levels):
                continue
            if not rule.allow:
                return Decision(False, rule.text)
            if not allowed.allowed:
                allowed = Decision(True, rule.text)
        return allowed

    def _about(self, kind: Kind, name: str) -> Iterable[CompiledRule]:
        for table in self._tables:
            yield from table.about(kind, name)

    def decide_prefix(self, action: Action, kind: Kind, prefix: str) -> Decision:
        """All names that begin with `prefix`: one allow covers them all, and no deny meets one of them."""
        allowed = NO_RULE
        for table in self._tables:
            for (other, name), rules in table.exact.items():
                if other is kind and name.startswith(prefix):
                    for rule in rules:
                        if rule.actions & action and not rule.allow:
                            return Decision(False, rule.text)
            for begin, rule in table.prefixes.get(kind, ()):
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
