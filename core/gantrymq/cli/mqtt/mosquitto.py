"""mosquitto.conf -> settings of this server, as far as they map, with the list of what does not."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote

from gantrymq.config import is_secret
from gantrymq.net.places import HINT, IDENTITY_IS_USER, PSK_FILE

BRIDGE_KEYS: Final = frozenset(
    {
        "address", "addresses", "clientid", "username", "password", "topic", "cleansession", "keepalive_interval",
        "restart_timeout", "remote_password_file", "notifications", "notifications_local_only", "notification_topic", "try_private", "start_type",
        "idle_timeout", "threshold", "round_robin", "remote_clientid", "remote_username", "remote_password", "local_clientid",
        "local_username", "local_password", "local_cleansession",
    }
)  # fmt: skip
"""Options of a bridge beside `bridge_...`."""

KEPT: Final = {
    "persistence": "everything that is acknowledged is in the log",
    "persistence_location": "the data directory is server.data (--data); gantry mqtt import-db reads the mosquitto.db that lies there",
    "persistence_file": "there is one log; gantry mqtt import-db reads that file",
    "autosave_interval": "the log is written at once",
    "autosave_on_changes": "the log is written at once",
    "user": "the service's own user is the one it is started as",
    "pid_file": "see docs/operations/install.md for systemd",
    "upgrade_outgoing_qos": "a message goes out at the lower of its and the subscription's QoS",
    "per_listener_settings": "settings are those of the door",
    "set_tcp_nodelay": "it always is",
}
"""Options that need nothing here, and why."""

SPANS: Final = {"h": 3_600, "d": 86_400, "w": 7 * 86_400, "m": 30 * 86_400, "y": 365 * 86_400}


@dataclass(slots=True)
class _Listener:
    port: int
    host: str = ""
    path: str = ""
    options: dict[str, str] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    """psk_hint, psk_file, use_identity_as_username."""


@dataclass(slots=True)
class Imported:
    """`settings`: SECTION.KEY -> value. `bridges`: the file for `mqtt.bridges`, empty if there are none. `kept`: needs nothing; `left`: does not map."""

    settings: dict[str, str | int | bool | list[str]] = field(default_factory=dict)
    bridges: str = ""
    kept: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    def toml(self) -> str:
        """The settings as a configuration file."""
        lines: list[str] = []
        section = ""
        for name, value in sorted(self.settings.items()):
            head, _, key = name.partition(".")
            if head != section:
                section = head
                lines += ["", f"[{section}]"] if lines else [f"[{section}]"]
            lines.append(f"{key} = {_value(value)}")
        return "\n".join(lines) + "\n" if lines else ""


def _value(value: str | int | bool | list[str]) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, list):
        return "[" + ", ".join(_value(each) for each in value) + "]"
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _span(text: str) -> int:
    found = re.fullmatch(r"(\d+)([hdwmy])", text)
    if found is None:
        raise ValueError("write a number and h, d, w, m or y")
    return int(found[1]) * SPANS[found[2]]


def _whole(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        number = int(text)
        if not least <= number <= most:
            raise ValueError(f"here it is from {least} to {most}")
        return number

    return read


NUMBERS: Final[dict[str, tuple[str, Callable[[str], int]]]] = {
    "max_inflight_messages": ("mqtt.inflight_max", _whole(1, 10_000)),
    "max_keepalive": ("mqtt.keep_alive_s_max", _whole(0, 65_535)),
    "message_size_limit": ("message.body_bytes_max", _whole(1, 15_000_000)),
    "max_packet_size": ("message.body_bytes_max", _whole(1, 15_000_000)),
    "persistent_client_expiration": ("mqtt.session_expiry_s", _span),
    "sys_interval": ("mqtt.sys_interval_s", _whole(0, 86_400)),
    "max_connections": ("server.door_connections_max", _whole(1, 1_000_000)),
}
"""Options that are a number here, too."""

QUEUES: Final[dict[str, tuple[str, str, Callable[[str], int]]]] = {
    "max_queued_messages": ("mqtt.volatile_entries", "broker.session_messages", _whole(1, 1_000_000)),
    "max_queued_bytes": ("mqtt.volatile_bytes", "broker.session_bytes", _whole(0, 1 << 50)),
}
"""Limits of what waits for a client: of clean and of kept sessions, `..._max` each. The newest go, as with Mosquitto."""

ACCOUNTS: Final = ("password_file", "acl_file")

FILES: Final = {"certfile": "cert", "keyfile": "key", "cafile": "client_ca", "crlfile": "crl"}
"""Options of a listener with TLS."""


class _Reader:
    def __init__(self) -> None:
        self.found = Imported()
        self._listeners = [_Listener(1883)]
        self._default_used = False
        self._psk_file = ""
        """Of every listener that has none of its own."""
        self._per_listener = False
        self._bridges: list[str] = []
        self._in_bridge = False

    def line(self, number: int, key: str, value: str) -> None:
        try:
            self._line(key, value)
        except ValueError as error:
            hidden = is_secret(key) or "psk" in key
            self.found.left.append(f"line {number}: {key} {'***' if hidden else value} ({error})")

    def _line(self, key: str, value: str) -> None:
        listener = self._listeners[-1]
        if key == "connection" or (self._in_bridge and (key in BRIDGE_KEYS or key.startswith("bridge_"))):
            self._in_bridge = True
            self._bridges.append(f"{key} {value}")
            return
        if key == "listener":
            self._in_bridge = False
            port, _, host = value.partition(" ")
            path = host.strip() if port == "0" else ""
            self._listeners.append(_Listener(int(port), "" if path else host.strip(), path))
        elif key == "port":
            self._listeners[0].port, self._default_used = int(value), True
        elif key == "bind_address":
            self._listeners[0].host, self._default_used = value, True
        elif key in FILES:
            listener.options[FILES[key]] = value
        elif key == "require_certificate" and value in ("true", "false"):
            listener.options["client_cert"] = "required" if value == "true" else "none"
        elif key == "protocol" and value in ("mqtt", "websockets"):
            if value == "websockets":
                self.found.kept.append("protocol websockets: every port takes WebSockets, at mqtt.websocket_path")
        elif key == "allow_anonymous" and value in ("true", "false"):
            self.found.settings["mqtt.allow_anonymous"] = value == "true"
        elif key == "retain_available" and value == "false":
            self.found.settings["mqtt.retained_max"] = 0
        elif key == "use_subject_as_username" and value in ("true", "false"):
            if value == "true":
                self.found.settings["auth.certificate_user"] = "subject"
        elif (key == IDENTITY_IS_USER and value in ("true", "false")) or key == HINT:
            listener.keys[key] = value
        elif key == PSK_FILE:
            if self._per_listener:
                listener.keys[key] = value
            else:
                self._psk_file = value
        elif key in ACCOUNTS:
            self.found.left.append(f"{key} {value}: with auth.enabled=true, gantry auth import mosquitto {value}")
        elif key in NUMBERS:
            name, read = NUMBERS[key]
            self.found.settings[name] = read(value)
        elif key in QUEUES:
            clean, kept, read = QUEUES[key]
            most = read(value)
            newest = {"mqtt.volatile_entries_full": "drop_newest", f"{kept}_full": "drop_newest"}
            self.found.settings |= {f"{clean}_max": most, f"{kept}_max": most, **newest}
        elif key in KEPT:
            self._per_listener |= (key, value) == ("per_listener_settings", "true")
            self.found.kept.append(f"{key}: {KEPT[key]}")
        else:
            raise ValueError("there is nothing like it")

    def end(self) -> Imported:
        found = self.found
        listeners = self._listeners if self._default_used or len(self._listeners) == 1 else self._listeners[1:]
        for listener in listeners:
            self._give_keys(listener)
        if self._psk_file and not any(HINT in listener.keys for listener in listeners):
            found.left.append(
                f"psk_file {self._psk_file}: no listener has a psk_hint, without which Mosquitto asks for no keys"
            )
        places = [self._place(listener) for listener in listeners]
        if places != ["tcp://127.0.0.1:1883"]:
            found.settings["mqtt.listeners"] = places
        if any("://0.0.0.0" in place or "://[::]" in place for place in places):
            found.left.append(
                "listeners that other machines reach: they are refused until server.insecure_bind is true or accounts are set up"
            )
        found.bridges = "\n".join(self._bridges) + "\n" if self._bridges else ""
        return found

    def _give_keys(self, listener: _Listener) -> None:
        """What `psk_hint` and `use_identity_as_username` make of it, once all lines are read."""
        left, kept = self.found.left, self.found.kept
        identity = listener.keys.pop(IDENTITY_IS_USER, "false") == "true"
        file = listener.keys.get(PSK_FILE, self._psk_file)
        if HINT not in listener.keys or "cert" in listener.options or not file:
            if HINT in listener.keys:
                why = "its listener has certificates" if "cert" in listener.options else "there is no psk_file"
                left.append(f"psk_hint {listener.keys[HINT]}: {why}")
            if identity:
                self.found.settings["auth.certificate_user"] = "cn"
            return
        listener.options = {PSK_FILE: file, HINT: listener.keys[HINT]} | (
            {IDENTITY_IS_USER: "true"} if identity else {}
        )
        kept.append(f"psk_file {file}: read as it is, by a server on Python 3.13 or newer (chmod 600)")
        if identity:
            left.append(
                f"{IDENTITY_IS_USER}: with auth.enabled=true, and a user for each identity of {file} (gantry user add NAME --no-password)"
            )

    def _place(self, listener: _Listener) -> str:
        if listener.path:
            return f"unix://{listener.path}"
        # Mosquitto 2 without a listener is for this machine alone; with one it is for everybody.
        host = listener.host or ("127.0.0.1" if listener is self._listeners[0] else "0.0.0.0")
        host = f"[{host}]" if ":" in host else host
        secure = "cert" in listener.options or PSK_FILE in listener.options
        options = "&".join(f"{key}={quote(value)}" for key, value in listener.options.items()) if secure else ""
        return f"{'tls' if secure else 'tcp'}://{host}:{listener.port}" + (f"?{options}" if options else "")


def read_mosquitto(text: str) -> Imported:
    """Everything that a mosquitto.conf says."""
    reader = _Reader()
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if line and not line.startswith("#"):
            key, _, value = line.partition(" ")
            reader.line(number, key, value.strip())
    return reader.end()
