"""Bridges as mosquitto.conf writes them: `connection`, `address`, `topic PATTERN [DIRECTION [QOS [LOCAL [REMOTE]]]]` and what belongs to them."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

DIRECTIONS: Final = ("out", "in", "both")

IGNORED: Final = frozenset(
    {
        "bridge_attempt_unsubscribe", "bridge_bind_address", "bridge_outgoing_retain", "bridge_protocol_version", "idle_timeout",
        "local_cleansession", "local_clientid", "local_password", "local_username", "notifications_local_only", "round_robin",
        "start_type", "threshold", "bridge_max_packet_size", "bridge_max_topic_alias", "bridge_receive_maximum",
        "bridge_tcp_keepalive", "bridge_tcp_user_timeout", "bridge_session_expiry_interval", "bridge_reload_type",
        "bridge_require_ocsp", "bridge_alpn", "bridge_tls_version", "bridge_psk", "bridge_identity", "bridge_capath",
        "bridge_ciphers", "bridge_tls_use_os_certs",
    }
)  # fmt: skip
"""Options of a bridge that are not kept; `notes` says so."""


@dataclass(frozen=True, slots=True)
class TopicRule:
    """One `topic` line. A local topic is `local` + what the pattern matches, a remote one `remote` + the same."""

    pattern: str
    direction: str = "out"
    qos: int = 0
    local: str = ""
    remote: str = ""

    @property
    def local_filter(self) -> str:
        return self.local + self.pattern

    @property
    def remote_filter(self) -> str:
        return self.remote + self.pattern

    def to_remote(self, topic: str) -> str:
        """Of a local topic that the rule's filter matches."""
        return self.remote + topic[len(self.local) :]

    def to_local(self, topic: str) -> str:
        """Of a remote topic that the rule's filter matches."""
        return self.local + topic[len(self.remote) :]


@dataclass(slots=True)
class Connection:
    """One bridge. `addresses`: (host, port), tried in turn. `restart_s`: shortest and longest wait before the next attempt."""

    name: str
    addresses: list[tuple[str, int]] = field(default_factory=list)
    topics: list[TopicRule] = field(default_factory=list)
    client_id: str = ""
    user_name: str | None = None
    password: str | None = field(default=None, repr=False)
    clean: bool = False
    keep_alive_s: int = 60
    restart_s: tuple[float, float] = (1.0, 30.0)
    notifications: bool = True
    notification_topic: str = ""
    private: bool = True
    """Say that we are a bridge, so that the other side does not send our own messages back (`try_private`)."""
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    insecure: bool = False
    """Do not compare the certificate's name with the address (`bridge_insecure`)."""

    @property
    def state_topic(self) -> str:
        """Where the other side is told whether we are there."""
        return self.notification_topic or f"$SYS/broker/connection/{self.client_id}/state"

    @property
    def tls(self) -> bool:
        return bool(self.ca_file or self.cert_file)


@dataclass(slots=True)
class Parsed:
    """What a file says. `notes`: lines that were understood and mean nothing here."""

    connections: list[Connection] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class BridgeFileError(ValueError):
    """A line that is no bridge's; the text names it."""


def parse(text: str, host_name: str = "gantry", strict: bool = True) -> Parsed:
    """Bridges of a file. `host_name`: for client ids where none is given. `strict`: raise BridgeFileError also for what is no option of a bridge;
    else that is left out."""
    found = Parsed()
    current: Connection | None = None
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        key, _, value = line.partition(" ")
        value = value.strip()
        try:
            if key == "connection":
                current = Connection(value)
                found.connections.append(current)
                continue
            if current is None:
                if strict:
                    raise ValueError(f"{key} stands before any `connection NAME`")
                continue
            _option(current, key, value, found, strict)
        except ValueError as error:
            raise BridgeFileError(f"line {number}: {error}") from error
    for connection in found.connections:
        connection.client_id = connection.client_id or f"{host_name}.{connection.name}"
        if not connection.name or not connection.addresses or not connection.topics:
            raise BridgeFileError(f"connection {connection.name!r} needs a name, an address and a topic")
    names = [connection.name for connection in found.connections]
    if len(set(names)) < len(names):
        raise BridgeFileError("two connections have one name")
    return found


def _option(current: Connection, key: str, value: str, found: Parsed, strict: bool) -> None:
    texts = {
        "remote_clientid": "client_id", "clientid": "client_id", "remote_username": "user_name", "username": "user_name",
        "remote_password": "password", "password": "password", "notification_topic": "notification_topic",
        "bridge_cafile": "ca_file", "bridge_certfile": "cert_file", "bridge_keyfile": "key_file",
    }  # fmt: skip
    flags = {
        "cleansession": "clean",
        "notifications": "notifications",
        "try_private": "private",
        "bridge_insecure": "insecure",
    }
    if key in ("address", "addresses"):
        current.addresses += [_address(part) for part in value.split()]
    elif key == "topic":
        current.topics.append(_topic(value))
    elif key == "remote_password_file":
        current.password = _first_line(value)
    elif key in texts:
        setattr(current, texts[key], _from_environment(value) if texts[key] == "password" else value)
    elif key in flags:
        if value not in ("true", "false"):
            raise ValueError(f"{key} is true or false, not {value!r}")
        setattr(current, flags[key], value == "true")
    elif key == "keepalive_interval":
        current.keep_alive_s = min(max(int(value), 5), 65_535)
    elif key == "restart_timeout":
        times = [float(part) for part in value.split()]
        if not 1 <= len(times) <= 3:
            raise ValueError("restart_timeout has one to three numbers")
        current.restart_s = (times[0], max(times))
    elif key in IGNORED:
        hidden = "password" in key or "psk" in key
        found.notes.append(f"connection {current.name}: {key} {'***' if hidden else value}")
    elif strict:
        raise ValueError(f"{key} is no option of a bridge")


def _first_line(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").partition("\n")[0].rstrip("\r")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"remote_password_file {path}: {getattr(error, 'strerror', None) or error}") from error


def _from_environment(value: str) -> str:
    """`${NAME}` as a whole is a variable of the environment."""
    if not (value.startswith("${") and value.endswith("}")):
        return value
    found = os.environ.get(value[2:-1])
    if found is None:
        raise ValueError(f"the environment has no {value[2:-1]}")
    return found


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal():
        host, port = text, "1883"
    return host.strip("[]"), int(port)


def _topic(value: str) -> TopicRule:
    words = shlex.split(value)
    if not 1 <= len(words) <= 5:
        raise ValueError("topic PATTERN [DIRECTION [QOS [LOCAL-PREFIX [REMOTE-PREFIX]]]]")
    pattern = words[0]
    direction = words[1] if len(words) > 1 else "out"
    qos = words[2] if len(words) > 2 else "0"
    if direction not in DIRECTIONS or qos not in ("0", "1", "2"):
        raise ValueError(f"a direction is one of {', '.join(DIRECTIONS)} and a QoS 0, 1 or 2: topic {value}")
    rule = TopicRule(pattern, direction, int(qos), *words[3:])
    for text in (rule.local_filter, rule.remote_filter):
        if not text:
            raise ValueError(f"a pattern that is empty needs both prefixes: topic {value}")
    if {"+", "#"} & set(rule.local + rule.remote):
        raise ValueError(f"a prefix has no wildcards: topic {value}")
    return rule
