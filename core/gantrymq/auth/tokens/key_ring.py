"""The keys of an issuer as they are now: read from a file or a URL, kept, and read again from time to time and for a key that is not known.

What cannot be read leaves the keys of before in force: an issuer that is away, or sends nonsense, locks nobody out (and lets nobody in).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from threading import Thread
from typing import IO, Any, Final
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from gantrymq.auth.logins import Timer
from gantrymq.auth.tokens.key_sets import SET_BYTES_MAX, KeySet, KeySetError, read_key_set
from gantrymq.net.loopback import is_loopback

log = logging.getLogger(__name__)

FETCH_S: Final = 10.0
AGAIN_MS: Final = 10_000
"""No two readings are closer to each other, however many tokens name keys that nobody knows."""

Load = Callable[[], bytes]


class KeyRing:
    """Of one process."""

    def __init__(self, load: Load, timer: Timer, post: Callable[..., object], refresh_ms: int) -> None:
        """`load` may take its time, in a thread; raises OSError. `post(callback, *arguments)`: run it on the loop."""
        self._load = load
        self._timer = timer
        self._post = post
        self._refresh_ms = refresh_ms
        self._busy = False
        self._read_ms = -AGAIN_MS
        self._wanted = False
        self._why = ""
        self.keys: KeySet | None = None
        """None: they were never read."""

    def read_now(self) -> None:
        """Of a file, at the start. Raises OSError and `KeySetError`."""
        self.keys = read_key_set(self._load())

    def follow(self) -> None:
        """From now on."""
        if self.keys is None:
            self._read()
        self._timer.call_at(self._timer.now_ms() + self._refresh_ms, self._refresh)

    def _refresh(self, now_ms: int) -> None:
        self._read()
        self._timer.call_at(now_ms + self._refresh_ms, self._refresh)

    def ask_again(self) -> None:
        """A token names a key that is not known: soon."""
        if self._busy or self._wanted:
            return
        self._wanted = True
        now_ms = self._timer.now_ms()
        self._timer.call_at(max(self._read_ms + AGAIN_MS, now_ms), lambda at_ms: self._read())

    def _read(self) -> None:
        if self._busy:
            return
        self._wanted = False
        self._busy = True
        self._read_ms = self._timer.now_ms()
        Thread(target=self._in_thread, name="gantry-token-keys", daemon=True).start()

    def _in_thread(self) -> None:
        found: KeySet | str
        try:
            found = read_key_set(self._load())
        except (OSError, ValueError) as error:
            found = str(error)
        try:
            self._post(self._loaded, found)
        except RuntimeError:  # the loop has ended meanwhile
            return

    def _loaded(self, found: KeySet | str) -> None:
        self._busy = False
        if isinstance(found, str):
            if found != self._why:
                log.warning(
                    "auth.jwt_keys: %s; %s",
                    found,
                    "the keys of before stay" if self.keys else "nobody with a token comes in",
                )
            self._why = found
            if self.keys is None:
                self.ask_again()
            return
        if self._why or self.keys is None:
            log.info("%d keys that sign JWTs were read (auth.jwt_keys)", len(found))
        self._why = ""
        self.keys = found


def loader_of(source: str) -> Load:
    """Of `auth.jwt_keys`: a path, or a URL with https (http to this machine alone). Raises ValueError."""
    if "://" not in source:
        return lambda: _file(Path(source))
    check_url(source)
    return lambda: _url(source)


def check_url(source: str) -> bool:
    """Whether it has TLS. Raises ValueError for a URL that may not say who comes in, and OSError."""
    parts = urlsplit(source)
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(parts.hostname or "")):
        raise ValueError("a file, or a URL with https: whoever answers decides who comes in")
    if parts.username is not None:
        raise ValueError("a URL without user and password, which would stand in logs")
    return parts.scheme == "https"


def _file(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(SET_BYTES_MAX + 1)


class _NoRedirects(HTTPRedirectHandler):
    """Keys come from where the configuration says."""

    def redirect_request(self, req: Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str) -> None:
        return None


def _url(source: str) -> bytes:
    request = Request(source, headers={"Accept": "application/json"})
    try:
        with build_opener(_NoRedirects).open(request, timeout=FETCH_S) as answer:
            data: bytes = answer.read(SET_BYTES_MAX + 1)
    except URLError as error:
        raise OSError(f"{source}: {error.reason}") from error
    except HTTPException as error:
        raise OSError(f"{source}: no answer in HTTP: {error!r}") from error
    if len(data) > SET_BYTES_MAX:
        raise KeySetError(f"{source}: more than {SET_BYTES_MAX} bytes")
    return data
