"""Policies as they are now, compiled once for all who have them."""

from __future__ import annotations

from gantrymq.auth.audit import Audit
from gantrymq.auth.authority import Authority
from gantrymq.auth.config import AuthConfig
from gantrymq.auth.resources import Action, Kind
from gantrymq.auth.rows import POLICIES, USERS, Policy, Rule, User, encode
from gantrymq.net.testing import ManualClock, ManualWheel


def allowed(authority: Authority, client_id: str) -> bool:
    identity = authority.identity("a", client_id, "127.0.0.1:1")
    return identity.decide(Action.PUB, Kind.TOPIC, "t").allowed


def test_policies_are_compiled_once_until_they_change() -> None:
    wheel = ManualWheel(ManualClock())
    authority = Authority(AuthConfig(enabled=True), None, lambda callback: callback(), Audit(wheel, lambda: 0, "test"))  # type: ignore[arg-type]  # nobody logs in
    rows = {name: encode(Policy(name, (Rule("topic:t", ("pub",)),))) for name in ("user:a", "group:g")}
    authority.load(USERS, {"a": encode(User("a", groups=("g",)))})
    authority.load(POLICIES, rows)
    assert allowed(authority, "c1")
    known = dict(authority._compiled)
    assert allowed(authority, "c2")
    assert authority._compiled == known
    authority.apply(POLICIES, "user:a", encode(Policy("user:a", (Rule("topic:t", ("pub",), allow=False),))))
    assert list(authority._compiled) == ["group:g"], "what nobody has asked since is not kept"
    assert not allowed(authority, "c1")
    assert authority._compiled["group:g"] is known["group:g"]
    authority.apply(POLICIES, "user:a", None)
    authority.apply(POLICIES, "group:g", None)
    assert not allowed(authority, "c1")
    assert authority._compiled == {}
