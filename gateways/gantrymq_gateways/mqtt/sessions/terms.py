"""What a CONNECT asks for, in one form for all versions, and what CONNACK and SUBACK answer (MQTT 5.0 3.1.2.11, 3.2.2.3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gantrymq.model.errors import GantryError
from gantrymq_gateways.mqtt.messages.grants import QOS
from gantrymq_gateways.mqtt.sessions.sessions import Session
from gantrymq_gateways.mqtt.wire import constants as c
from gantrymq_gateways.mqtt.wire import properties as p
from gantrymq_gateways.mqtt.wire.packets import Connect, Subscribe
from gantrymq_gateways.mqtt.wire.properties import Properties
from gantrymq_gateways.mqtt.wire.reasons import SUBACK_FAILURE, subscribe_reason


def _unchanged(known: str) -> str:
    return known


@dataclass(slots=True)
class Terms:
    """Of one connection and its session. `clean`: what there was ends first. `expiry_s`: how long the session outlives its connection."""

    clean: bool = True
    expiry_s: int = 0
    stored_expiry_s: int | None = None
    """What its row says; None: what is configured (3.x)."""
    capped: bool = False
    """The client asked for more."""
    receive_max: int = c.RECEIVE_MAX
    alias_max: int = 0
    problems: bool = True
    """Reason strings are welcome in every packet [MQTT5-3.1.2-29]."""
    will_delay_s: int = 0
    five: bool = False
    owner: Callable[[str], str] = _unchanged
    """Whose the session is from now on, by whose it was; raises GantryError for one that is another user's (access.py)."""


def terms_of(connect: Connect, expiry_s_max: int) -> Terms:
    """The terms that a CONNECT sets. A session of 3.x that is not clean lasts for `expiry_s_max`, which nobody goes beyond."""
    if connect.level != c.LEVEL_5:
        return Terms(connect.clean, 0 if connect.clean else expiry_s_max)
    asked = connect.properties
    wanted_s: int = asked.get(p.SESSION_EXPIRY, 0)
    expiry_s = min(wanted_s, expiry_s_max)
    return Terms(
        connect.clean,
        expiry_s,
        expiry_s,
        expiry_s < wanted_s,
        asked.get(p.RECEIVE_MAXIMUM, c.RECEIVE_MAX),
        asked.get(p.TOPIC_ALIAS_MAXIMUM, 0),
        asked.get(p.REQUEST_PROBLEM, 1) == 1,
        connect.will.properties.get(p.WILL_DELAY, 0) if connect.will is not None else 0,
        True,
    )


def connack_properties(
    terms: Terms, packet_bytes_max: int, receive_max: int, alias_max: int, assigned_id: str, keep_alive_s: int | None
) -> Properties:
    """What the server says of itself; what has its default is left out."""
    properties: Properties = {}
    if terms.capped:
        properties[p.SESSION_EXPIRY] = terms.expiry_s  # (MQTT 5.0 3.2.2.3.2)
    properties[p.RECEIVE_MAXIMUM] = receive_max
    properties[p.MAXIMUM_PACKET_SIZE] = packet_bytes_max
    if assigned_id:
        properties[p.ASSIGNED_CLIENT_ID] = assigned_id  # [MQTT5-3.2.2-16]
    if alias_max:
        properties[p.TOPIC_ALIAS_MAXIMUM] = alias_max
    if keep_alive_s is not None:
        properties[p.SERVER_KEEP_ALIVE] = keep_alive_s  # [MQTT5-3.2.2-21]
    return properties


def is_quiet(options: int, existed: bool) -> bool:
    """A subscription that retained messages are not sent for [MQTT5-3.3.1-10] [MQTT5-3.3.1-11]."""
    handling = options & c.OPTION_RETAIN_HANDLING
    return handling == 0x20 or (handling == 0x10 and existed)


def codes_of(
    session: Session, packet: Subscribe, granted: dict[str, int], refused: dict[str, GantryError]
) -> list[int]:
    """SUBACK's codes [MQTT-3.9.3-1] [MQTT5-3.9.3-1]."""
    codes = []
    for text, _ in packet.filters:
        if text in granted:
            codes.append(granted[text] & QOS)
        elif session.outlet.five and text in refused:
            codes.append(int(subscribe_reason(refused[text].code)))
        else:
            codes.append(SUBACK_FAILURE)
    return codes
