"""Tokens at the doors: who one says somebody is, by section `auth` and the keys that are known now."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from gantrymq.auth.config import AuthConfig
from gantrymq.auth.rows import Policy, check_name
from gantrymq.auth.tokens import own
from gantrymq.auth.tokens import verify as verifying
from gantrymq.auth.tokens.key_ring import KeyRing
from gantrymq.auth.tokens.scopes import Scope, parse_scopes
from gantrymq.auth.tokens.verify import Expected, TokenError, UnknownKeyError

GROUPS_MAX: Final = 100
"""Of one token; what is beyond has no effect."""

NO_KEYS: Final = "the keys of tokens are not known yet: come again"


class Held(Protocol):
    """What holds now of a login that is asked about again."""

    @property
    def withdrawn(self) -> bool: ...

    def revised(self, user: TokenUser) -> TokenUser: ...


@dataclass(frozen=True, slots=True)
class TokenUser:
    """Who a token is."""

    name: str
    groups: tuple[str, ...]
    scopes: tuple[Scope, ...]
    expires_ms: int
    """Of the wall clock."""
    policy: Policy | None = None
    """Rights that came with the login."""
    by_backend: bool = False
    """It is no token: the HTTP back end said so."""
    held: Held | None = None
    """What the back end says now, where it is asked again."""


def is_token(text: str) -> bool:
    """Whether a password is a token: an issuer's, or one of ours."""
    return verifying.looks_like_one(text) or own.looks_like_one(text)


class Tokens:
    """Those of an issuer, of one process."""

    def __init__(self, config: AuthConfig, ring: KeyRing, now_ms: Callable[[], int]) -> None:
        """`now_ms`: the wall clock."""
        self._config = config
        self._ring = ring
        self._expected = Expected(config.jwt_issuer, config.jwt_audience, config.jwt_leeway_ms / 1000)
        self.now_ms = now_ms

    def user_of(self, token: str) -> TokenUser:
        """Raises `TokenError`."""
        keys = self._ring.keys
        if keys is None:
            self._ring.ask_again()
            raise TokenError(NO_KEYS)
        try:
            claims = verifying.verify(token, keys, self._expected, self.now_ms() / 1000)
        except UnknownKeyError:
            self._ring.ask_again()
            raise
        return self._user(claims)

    def _user(self, claims: dict[str, Any]) -> TokenUser:
        config = self._config
        name = _claim(claims, config.jwt_user_claim)
        if not isinstance(name, str):
            raise TokenError(f"it has no text in claim {config.jwt_user_claim!r} (auth.jwt_user_claim)")
        try:
            check_name(name)
        except ValueError as error:
            raise TokenError(f"claim {config.jwt_user_claim!r}: {error}") from error
        expires_s = verifying.time_of(claims, "exp") or 0.0
        groups = [each for each in _texts(_claim(claims, config.jwt_groups_claim)) if _is_name(each)]
        scopes: tuple[Scope, ...] = ()
        if config.jwt_scope_prefix:
            scopes = parse_scopes(_texts(claims.get("scope", claims.get("scp"))), config.jwt_scope_prefix)
        return TokenUser(name, tuple(groups[:GROUPS_MAX]), scopes, int(expires_s * 1000) + config.jwt_leeway_ms)


def _claim(claims: dict[str, Any], path: str) -> Any:
    """By name, or by the names of objects within each other with dots between them (`realm_access.roles`)."""
    if path in claims:
        return claims[path]
    found: Any = claims
    for name in path.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return found


def _texts(value: Any) -> list[str]:
    """A list of texts, or one text with spaces between them."""
    if isinstance(value, str):
        return value.split(" ")
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def _is_name(text: str) -> bool:
    try:
        check_name(text)
    except ValueError:
        return False
    return True
