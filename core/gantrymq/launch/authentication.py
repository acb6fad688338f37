"""Authentication of a process: made from section `auth`, fed by the broker's tables, and given its first administrator."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections.abc import Callable
from functools import partial
from pathlib import Path
from socket import gethostname
from typing import Any, Final

import msgspec

from gantrymq.auth import passwords
from gantrymq.auth.audit import Audit
from gantrymq.auth.authority import Authority
from gantrymq.auth.config import AuthConfig
from gantrymq.auth.failures import Failures
from gantrymq.auth.keys import KEY_FILE, KeyFileError, add_key, read_keys
from gantrymq.auth.logins import Logins
from gantrymq.auth.outside.answers import FORM, JSON, header_of
from gantrymq.auth.outside.backend import Backend, Exchange
from gantrymq.auth.rows import POLICIES, TOKENS, USERS, User, check_name, encode
from gantrymq.auth.sasl.scram import hashes_of
from gantrymq.auth.tokens.key_ring import KeyRing, check_url, loader_of
from gantrymq.auth.tokens.tokens import Tokens
from gantrymq.broker.port import BrokerPort
from gantrymq.model.errors import ConfigError, GantryError
from gantrymq.net.api import Wheel
from gantrymq.net.dial.page import post
from gantrymq.net.procedures.awaited import awaited
from gantrymq.net.procedures.driver import Steps, run

log = logging.getLogger(__name__)

SEED_BYTES: Final = 32


def authority_of(
    config: AuthConfig, wheel: Wheel, soon: Callable[[Callable[[], None]], None], now_ms: Callable[[], int]
) -> Authority:
    """The authority of this process; nobody can log in before `follow`. Raises `ConfigError`."""
    try:
        passwords.check_package()
    except passwords.HashError as error:
        raise ConfigError(f"auth.enabled = true: {error}") from error
    loop = asyncio.get_running_loop()
    logins = Logins(
        wheel,
        loop.call_soon_threadsafe,
        os.urandom(SEED_BYTES),
        verified_ms=config.verified_ms,
        waiting_max=config.logins_max,
        address_waiting_max=config.address_logins_max,
        failures=Failures(config.failure_delay_ms, config.failure_delay_max_ms, config.address_failures_max),
    )
    audit = Audit(wheel, now_ms, f"{gethostname()}:{os.getpid()}")
    tokens = _tokens_of(config, wheel, now_ms) if config.jwt_keys else None
    authority = Authority(config, logins, soon, audit, partial(hashes_of, with_verifier=config.scram), tokens)
    if config.http_url:
        authority.backend = Backend(config, logins, wheel, now_ms, _exchange_of(config))
        authority.backend.attach(authority.rights_changed)
    return authority


def _exchange_of(config: AuthConfig) -> Exchange:
    """Raises `ConfigError`: what is wrong with files is said at the start."""
    try:
        secure = check_url(config.http_url)
        tls = ssl.create_default_context(cafile=config.http_ca or None) if secure else None
    except (OSError, ValueError) as error:
        raise ConfigError(f'auth.http_url = "{config.http_url}": {error}') from error
    headers = b"Content-Type: " + (FORM if config.http_format == "form" else JSON) + b"\r\n"
    if config.http_header_file:
        try:
            headers += header_of(Path(config.http_header_file).read_text(encoding="ascii"))
        except (OSError, ValueError) as error:
            why = "it is not ASCII" if isinstance(error, UnicodeError) else error
            raise ConfigError(f'auth.http_header_file = "{config.http_header_file}": {why}') from None
    timeout_s, bytes_max = config.http_timeout_ms / 1000, config.http_answer_bytes_max
    return lambda body: post(config.http_url, headers, body, timeout_s, bytes_max, tls)


def _tokens_of(config: AuthConfig, wheel: Wheel, now_ms: Callable[[], int]) -> Tokens:
    """Raises `ConfigError`: what is wrong with a file is said at the start, a URL may answer later."""
    for key in ("jwt_issuer", "jwt_audience"):
        if not getattr(config, key):
            raise ConfigError(f"auth.{key} is needed with auth.jwt_keys: else any token of these keys would do")
    try:
        ring = KeyRing(
            loader_of(config.jwt_keys),
            wheel,
            asyncio.get_running_loop().call_soon_threadsafe,
            config.jwt_refresh_ms,
        )
        if "://" not in config.jwt_keys:
            ring.read_now()
    except (OSError, ValueError) as error:
        raise ConfigError(f'auth.jwt_keys = "{config.jwt_keys}": {error}') from error
    ring.follow()
    return Tokens(config, ring, now_ms)


async def follow(authority: Authority, port: BrokerPort) -> None:
    """Have the users, tokens and policies behind `port`, now and as they change, and write the audit trail there. Raises GantryError."""
    authority.audit.attach(port)
    authority.attach(partial(_replace_row, port))
    await awaited(lambda token, on_done: run(_load(authority, port), partial(on_done, token)))


def _load(authority: Authority, port: BrokerPort) -> Steps:
    """The tables as they are: no change comes between an answer and what is done with it."""
    for table in (USERS, TOKENS, POLICIES):
        rows: dict[str, bytes] = yield partial(port.watch_table, table, partial(authority.apply, table))
        authority.load(table, rows)


def _replace_row(port: BrokerPort, before: User, after: User) -> None:
    """A user's row, if it is still as it was."""

    def done(_token: Any, result: Any) -> None:
        if isinstance(result, GantryError):
            log.warning("the password hash of user %s was not renewed: %s", before.name, result.text)

    port.put_if(USERS, [(before.name, encode(before), encode(after))], None, done)


async def open_at_broker(authority: Authority, port: BrokerPort, data: Path) -> None:
    """At a broker: the key of its secrets, its users, and the first administrator. Raises `ConfigError` and GantryError."""
    config = authority.config
    path = Path(config.key_file) if config.key_file else data / "gantry" / KEY_FILE
    try:
        if not config.key_file and not path.exists():
            add_key(path)
        authority.keys = read_keys(path)
    except (KeyFileError, OSError) as error:
        raise ConfigError(f"auth.key_file: {error}") from error
    await follow(authority, port)
    await _renew_secrets(authority, port)
    if authority.has_admin():
        return
    if not config.admin_file:
        log.warning("nobody is administrator: name one in the file of auth.admin_file (NAME:PASSWORD) and start again")
        return
    user = await asyncio.to_thread(_admin_of, Path(config.admin_file), authority)
    await awaited(port.put, USERS, [(user.name, encode(user))])
    log.info("user %s of %s is administrator", user.name, config.admin_file)


async def _renew_secrets(authority: Authority, port: BrokerPort) -> None:
    """Secrets that older keys of the file encrypted are encrypted under the one in front, so that the others may be dropped."""
    keys = authority.keys
    assert keys is not None
    rows: list[tuple[str, bytes | None, bytes | None]] = []
    for user in authority.users():
        try:
            sealed = keys.renewed(user.name, user.secret) if user.secret else None
        except KeyFileError as error:
            log.error("%s", error)
            continue
        if sealed is not None:
            rows.append((user.name, encode(user), encode(msgspec.structs.replace(user, secret=sealed))))
    if rows:
        changed = await awaited(port.put_if, USERS, rows)
        log.info(
            "%d of %d secrets that older keys had encrypted are encrypted under key %s now",
            sum(changed),
            len(rows),
            keys.name,
        )


def _admin_of(path: Path, authority: Authority) -> User:
    """Raises `ConfigError`."""
    try:
        line = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f'auth.admin_file = "{path}": {getattr(error, "strerror", None) or error}') from error
    name, colon, password = line.partition(":")
    try:
        check_name(name)
        if not colon or "\n" in password:
            raise ValueError("one line NAME:PASSWORD")
        if password.startswith("$"):
            passwords.check_hash(password)
            return User(name, admin=True, password=password)
        assert authority.keys is not None
        known, verifier = hashes_of(password, authority.config.scram)
        return User(name, admin=True, password=known, secret=authority.keys.seal(name, password), scram=verifier)
    except (ValueError, KeyFileError) as error:
        raise ConfigError(f'auth.admin_file = "{path}": {error}') from error
