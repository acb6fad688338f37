"""What of a command line can be told to be wrong before anything starts: addresses to bind and the place of the ready file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gantrymq.auth.config import AuthConfig
from gantrymq.auth.keys import KeyFileError
from gantrymq.auth.members.key import ClusterKey, parse_key, read_key_file
from gantrymq.config import ServerConfig, Settings
from gantrymq.model.errors import ConfigError
from gantrymq.net.host_names import host_names
from gantrymq.net.loopback import is_loopback, networks_of


def contradictions(
    settings: Settings, server: ServerConfig, configs: Mapping[str, Any], auth: bool = False
) -> Iterator[ConfigError]:
    """Settings each of which is allowed, but not beside another one. `configs`: what services of one machine have, by their names. `auth`:
    clients are authenticated."""
    given = settings.get("server", "host")
    try:
        may = server.insecure_bind or (auth and server.plaintext_bind)
        check_bind(server.host, may, given.source if given is not None else "default", auth=auth)
    except ConfigError as error:
        yield error
    for key, read, hint in (
        ("trusted_networks", networks_of, "write 10.0.0.0/8"),
        ("host_names", host_names, "write gantry.example,other.example, without ports"),
    ):
        try:
            read(getattr(server, key))
        except ValueError as error:
            given = settings.get("server", key)
            source = given.source if given is not None else "default"
            yield ConfigError(f'server.{key} = "{getattr(server, key)}" ({source}): {error}; {hint}', source)
    for key, floor in (
        ("outbound_bytes_ceiling", "outbound_bytes_max"),
        ("outbound_bytes_process_max", "outbound_bytes_max"),
    ):
        given, other = settings.get("server", key), settings.get("server", floor)
        if given is not None and other is not None and getattr(server, key) < getattr(server, floor):
            yield ConfigError(
                f"server.{key} = {getattr(server, key)} ({given.source}): must be at least server.{floor}, which is "
                f"{getattr(server, floor)} ({other.source})",
                given.source,
            )
    yield from _shared_ports(settings, configs)


def cluster_key_of(settings: Settings, auth: AuthConfig) -> ClusterKey | None:
    """The key that processes of this cluster share, if one is named. Raises `ConfigError`."""
    if not auth.cluster_key and not auth.cluster_key_file:
        return None
    name = "cluster_key" if auth.cluster_key else "cluster_key_file"
    given = settings.get("auth", name)
    source = given.source if given is not None else "default"
    if auth.cluster_key and auth.cluster_key_file:
        raise ConfigError(
            f"auth.cluster_key ({source}): auth.cluster_key_file names the key, too; drop one of both", source
        )
    try:
        return parse_key(auth.cluster_key) if auth.cluster_key else read_key_file(Path(auth.cluster_key_file))
    except KeyFileError as error:
        shown = "" if auth.cluster_key else f' = "{auth.cluster_key_file}"'
        raise ConfigError(f"auth.{name}{shown} ({source}): {error}", source) from error


def _shared_ports(settings: Settings, configs: Mapping[str, Any]) -> Iterator[ConfigError]:
    """Two doors cannot have one port; 0 is a free one, None the service's own choice."""
    takers: dict[int, str] = {}
    for name, config in configs.items():
        port = getattr(config, "port", None)
        if not port or settings.get(name, "listeners") is not None:
            continue
        first = takers.setdefault(port, name)
        if first == name:
            continue
        if settings.get(name, "port") is None:
            name, first = first, name
        given, other = settings.get(name, "port"), settings.get(first, "port")
        source = given.source if given is not None else "default"
        yield ConfigError(
            f"{name}.port = {port} ({source}): {first}.port is the same ({other.source if other is not None else 'default'}); give "
            f"one of them another port, or leave {name} out with {name}.enabled=false",
            source,
        )


def check_bind(
    host: str, allowed: bool, source: str = "default", setting: str = "server.host", auth: bool = False
) -> None:
    """Other machines may reach us only when the user says that this is meant. `source`: who gave the host, as `setting`. `auth`: clients are
    authenticated, so that only TLS is missing. Raises `ConfigError`."""
    try:
        allowed = allowed or is_loopback(host)
    except OSError as error:
        raise ConfigError(f'{setting} = "{host}" ({source}): {error.strerror or error}', source) from error
    if allowed:
        return
    if auth:
        raise ConfigError(
            f'{setting} = "{host}" ({source}): other machines could connect without TLS, and passwords be read on the way; use 127.0.0.1, '
            "or tls:// in the listeners of each service, or add --set server.plaintext_bind=true if the network is trusted",
            source,
        )
    raise ConfigError(
        f'{setting} = "{host}" ({source}): other machines could connect, and nobody is authenticated; use 127.0.0.1, '
        "or auth.enabled=true, or add --set server.insecure_bind=true if the network is trusted",
        source,
    )


def check_ready_file(given: str | None, data: Path) -> Path | None:
    """Where `--ready-file` is to appear; what an earlier start left there is removed by the server. It may be in the data directory, which the
    start makes. Raises `ConfigError`."""
    if given is None:
        return None
    path = Path(given)
    if path.is_dir():
        raise ConfigError(f"--ready-file {given}: it is a directory; a file is to be written")
    if not path.parent.is_dir() and path.parent.absolute() != data.absolute():
        raise ConfigError(f"--ready-file {given}: there is no directory {path.parent}")
    return path
