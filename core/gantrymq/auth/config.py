"""Section `auth`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gantrymq.model.settings import setting


@dataclass(frozen=True, slots=True)
class AuthConfig:
    """Who may come in, and how the process finds out."""

    enabled: bool = setting(
        False,
        "ask every client who it is, and allow only what policies say; off: what loopback and the settings of each door allow",
    )
    admin_file: str = setting(
        "",
        "file with NAME:PASSWORD, or NAME:HASH, of the first administrator, who is made at the start if there is none",
    )
    key_file: str = setting(
        "",
        "keys under which secrets of signing users are encrypted; empty: auth.key in D/gantry, made at the first start",
    )
    cluster_key_file: str = setting(
        "",
        "file with the key, 32 characters or more, that gateways, brokers and nameservers of one cluster share: where there is one, nobody else registers brokers or acts as a gateway; empty: they are known by address (server.trusted_networks)",
    )
    cluster_key: str = setting(
        "", "the key itself instead of a file, for the environment (GANTRY_AUTH__CLUSTER_KEY)", secret=True
    )
    cluster_certificates: list[str] = setting(
        [],
        "who shows one of these client certificates is a process of this cluster, as who shows the key: a subject (CN=gateway-1,O=Plant), or sha256:FINGERPRINT",
    )
    certificate_user: Literal["none", "cn", "subject", "dns", "email", "uri"] = setting(
        "cn", "which name of a client certificate is the user's"
    )
    http_url: str = setting(
        "",
        "URL with https of a service that is asked for users who have no account here when they log in with a password, and says what they may; empty: there are none",
    )
    http_format: Literal["form", "json"] = setting("form", "how it is asked, by POST")
    http_ca: str = setting("", "file with the CAs of its certificate; empty: the system's")
    http_header_file: str = setting(
        "", "file with one line NAME: VALUE that is sent with each request: how the service knows who asks"
    )
    http_timeout_ms: int = setting(
        2_000,
        "an answer takes no longer, connection and waiting for others each; then nobody is let in",
        least=50,
        most=60_000,
    )
    http_requests_max: int = setting(
        16, "requests that are under way at once; more wait, as many as logins may", least=1, most=1_000
    )
    http_answer_bytes_max: int = setting(
        65_536, "an answer that is longer, with its head, is none", least=1_024, most=16 * 1024 * 1024
    )
    http_cache_ms: int = setting(
        60_000, "an answer that let somebody in is known so long, by a keyed hash in memory", least=0, most=86_400_000
    )
    http_cached_max: int = setting(10_000, "answers that are known; the oldest are forgotten", least=1, most=1_000_000)
    http_session_ms: int = setting(
        86_400_000,
        "a connection of a user whom the service let in ends after so long, and may come again; an answer may say less",
        least=1_000,
        most=30 * 86_400_000,
    )
    http_refresh_ms: int = setting(
        0,
        "the service is asked again, without the password, about who is connected, after so long each: what it changes or takes back counts for open connections; 0: at logins only",
        least=0,
        most=86_400_000,
    )
    verified_ms: int = setting(
        600_000,
        "a password that was right is known so long, by a keyed hash in memory: a fleet that reconnects is not hashed again",
        least=0,
        most=86_400_000,
    )
    logins_max: int = setting(
        1_000, "logins that wait for a password hash; more are told to come again", least=1, most=100_000
    )
    failure_delay_ms: int = setting(
        250,
        "the second failed login of a user from an address is answered so much later, each further one twice as late",
        least=0,
        most=60_000,
    )
    failure_delay_max_ms: int = setting(8_000, "the longest such delay", least=0, most=600_000)
    address_failures_max: int = setting(
        20,
        "failed logins of one address, whatever the user, after which each login from there waits failure_delay_ms, and twice as long after each further one; one is forgotten every 30 s",
        least=1,
        most=1_000_000,
    )
    address_logins_max: int = setting(
        100, "logins of one address that wait; more are told to come again", least=1, most=100_000
    )
    unknown_ms: int = setting(
        10_000, "a connection that has not shown who it is after so long is closed", least=100, most=3_600_000
    )
    unknown_bytes_max: int = setting(
        64 * 1024,
        "bytes that are handled of a connection before it has shown who it is; one that sends more is closed",
        least=4096,
    )
    user_connections_max: int = setting(
        0, "open connections of one user, all doors together; 0: any number", least=0, most=10_000_000
    )
    user_connects_per_s: int = setting(
        0,
        "new connections of one user in a second, all doors together; more are refused; 0: any number",
        least=0,
        most=1_000_000,
    )
    user_requests_per_s: int = setting(
        0,
        "requests (packets, methods) of one user in a second, all its connections together: for more, reading pauses; 0: any number",
        least=0,
    )
    user_bytes_per_s: int = setting(0, "the same of bytes", least=0)
    scram: bool = setting(
        False,
        "keep what SCRAM-SHA-256 needs beside the hash of each password that is set from now on, and take it at the MQTT 5.0 and AMQP doors",
    )
    jwt_keys: str = setting(
        "",
        "file or https URL of the JWK set whose keys sign tokens (JWT), which are taken as passwords and as Bearer over HTTP; empty: no tokens",
    )
    jwt_issuer: str = setting("", "claim iss of every token")
    jwt_audience: str = setting("", "what claim aud of every token is, or has in it")
    jwt_user_claim: str = setting("sub", "claim that is the user's name; a.b is b within a")
    jwt_groups_claim: str = setting("groups", "claim with the user's groups, a list or one text with spaces")
    jwt_scope_prefix: str = setting(
        "",
        "how RabbitMQ's scopes begin in claim scope, its resource_server_id and a dot (rabbitmq.); empty: scopes are not read",
    )
    jwt_refresh_ms: int = setting(
        300_000,
        "the JWK set is read again after so long, and for a key that is not known",
        least=10_000,
        most=86_400_000,
    )
    jwt_leeway_ms: int = setting(5_000, "a token is good so much longer: clocks differ", least=0, most=300_000)
