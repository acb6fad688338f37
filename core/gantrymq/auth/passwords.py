"""Hashes of passwords: argon2id for ours, and those of RabbitMQ and Mosquitto, so that accounts move over without new passwords.

`$argon2id$...` is argon2's own form. `$7$ITERATIONS$SALT$HASH` (PBKDF2) and `$6$SALT$HASH` (SHA-512) are Mosquitto's. RabbitMQ's hashes
are base64 of 4 bytes of salt and the digest, and get its algorithm in front: `rabbit_password_hashing_sha256:...`.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable
from typing import Any, Final

TIME_COST, MEMORY_KIB, LANES = 2, 19 * 1024, 1
"""OWASP's least for argon2id; 30 to 40 ms of one core, and 19 MiB while it runs."""

ARGON_MEMORY_MAX: Final = 256 * 1024
ARGON_TIME_MAX: Final = 16
"""Of an imported hash, so that none takes the machine."""

ITERATIONS_MAX: Final = 10_000_000

PASSWORD_BYTES_MAX: Final = 1024
"""Longer ones are refused unhashed; MQTT's and AMQP's may have 64 KiB."""

RABBIT: Final = {"rabbit_password_hashing_sha256": "sha256", "rabbit_password_hashing_sha512": "sha512"}


class HashError(ValueError):
    """Not a hash that is known here; the text says why."""


def _hasher() -> Any:
    try:
        from argon2 import PasswordHasher
    except ImportError as error:
        raise HashError("the package argon2-cffi is not installed: pip install 'gantrymq[auth]'") from error
    return PasswordHasher(TIME_COST, MEMORY_KIB, LANES)


def check_package() -> None:
    """Raises `HashError` where argon2 is not installed."""
    _hasher()


def check_password(password: str) -> None:
    """Raises `HashError` for what cannot be one."""
    if not 0 < len(password.encode("utf-8", "surrogatepass")) <= PASSWORD_BYTES_MAX:
        raise HashError(f"a password has 1 to {PASSWORD_BYTES_MAX} bytes")


def make_hash(password: str) -> str:
    """Takes 30 to 40 ms. Raises `HashError`."""
    check_password(password)
    made: str = _hasher().hash(password)
    return made


def is_slow(known: str) -> bool:
    """Whether `verify` takes milliseconds: it is for a thread then."""
    return known.startswith(("$argon2", "$7$"))


def is_foreign(known: str) -> bool:
    """Whether it is another broker's hash: quicker to guess from than ours, and to be replaced at a login."""
    return bool(known) and not known.startswith("$argon2")


def verify(known: str, password: str) -> bool:
    """Whether it is the password of the hash. Never raises: what is no hash is nobody's password."""
    if not known or len(password.encode("utf-8", "surrogatepass")) > PASSWORD_BYTES_MAX:
        return False
    try:
        return _check_of(known)(known, password)
    except Exception:  # a hash that cannot be read lets nobody in, whatever is wrong with it
        return False


def check_hash(known: str) -> None:
    """Raises `HashError` for what `verify` could not use."""
    _check_of(known)
    try:
        _read(known)
    except HashError:
        raise
    except Exception as error:
        raise HashError(f"a hash that cannot be read: {type(error).__name__}") from error


def _read(known: str) -> None:
    """Raises what it likes for parts that are missing or wrong."""
    if known.startswith("$argon2"):
        fields = dict(part.split("=", 1) for part in known.split("$")[3].split(","))
        if int(fields["m"]) > ARGON_MEMORY_MAX or int(fields["t"]) > ARGON_TIME_MAX:
            raise HashError(f"argon2 with {fields['m']} KiB and {fields['t']} passes is more than this server does")
        if len(known.split("$")) != 6:
            raise HashError("a hash of argon2 with salt and digest")
    elif known.startswith(("$6$", "$7$")):
        *numbers, salt, digest = known.split("$")[2:]
        if [0 < int(number) <= ITERATIONS_MAX for number in numbers] != [True] * (known[1] == "7"):
            raise HashError("iterations that this server does")
        if not base64.b64decode(salt, validate=True) or len(base64.b64decode(digest, validate=True)) != 64:
            raise HashError("a salt, and a digest of 64 bytes")
    else:
        algorithm, _, text = known.partition(":")
        size = len(base64.b64decode(text, validate=True))
        if size != 4 + hashlib.new(RABBIT[algorithm]).digest_size:
            raise HashError(f"a digest of another length: {size} bytes with its salt")


def _check_of(known: str) -> Callable[[str, str], bool]:
    if known.startswith("$argon2id$"):
        return _argon
    if known.startswith("$7$"):
        return _mosquitto_pbkdf2
    if known.startswith("$6$"):
        return _mosquitto_sha512
    if known.partition(":")[0] in RABBIT:
        return _rabbit
    raise HashError("no hash of argon2id, Mosquitto ($6$, $7$) or RabbitMQ (sha256, sha512)")


def _argon(known: str, password: str) -> bool:
    from argon2.exceptions import VerificationError

    check_hash(known)
    try:
        good: bool = _hasher().verify(known, password)
    except VerificationError:
        return False
    return good


def _mosquitto_pbkdf2(known: str, password: str) -> bool:
    _, _, count, salt, digest = known.split("$")
    iterations = int(count)
    if not 0 < iterations <= ITERATIONS_MAX:
        return False
    wanted = base64.b64decode(digest, validate=True)
    found = hashlib.pbkdf2_hmac("sha512", password.encode(), base64.b64decode(salt, validate=True), iterations)
    return len(wanted) == 64 and hmac.compare_digest(found, wanted)


def _mosquitto_sha512(known: str, password: str) -> bool:
    _, _, salt, digest = known.split("$")
    wanted = base64.b64decode(digest, validate=True)
    found = hashlib.sha512(password.encode() + base64.b64decode(salt, validate=True)).digest()
    return len(wanted) == 64 and hmac.compare_digest(found, wanted)


def _rabbit(known: str, password: str) -> bool:
    algorithm, _, text = known.partition(":")
    data = base64.b64decode(text, validate=True)
    found = hashlib.new(RABBIT[algorithm], data[:4] + password.encode()).digest()
    return len(data) > 4 and hmac.compare_digest(found, data[4:])
