"""One message to one client, for subscriptions that have a place of their own: shared ones and those that begin in the past."""

from __future__ import annotations

import logging

from gantrymq.broker.port import Delivery
from gantrymq_gateways.mqtt.messages.deliver import body_of
from gantrymq_gateways.mqtt.messages.exchange import Twice
from gantrymq_gateways.mqtt.messages.facts import facts_of
from gantrymq_gateways.mqtt.messages.grants import QOS, combine
from gantrymq_gateways.mqtt.sessions.sessions import Acknowledged, Session, SessionTools

log = logging.getLogger(__name__)


def qos_of(delivery: Delivery, granted: int) -> int:
    """With which it goes out."""
    return min(granted & QOS, facts_of(delivery.message).qos)


def send_one(tools: SessionTools, session: Session, delivery: Delivery, granted: int, taken: Acknowledged) -> None:
    """Send it; `taken` hears of its end, at once if nothing is to be acknowledged: QoS 0, expired, without a topic."""
    message, outlet = delivery.message, session.outlet
    topic, body = tools.topics.get(message.topic, message.tag), body_of(message)
    facts = facts_of(message)
    now_ms = tools.now_ms() if facts.expires_ms else 0
    qos = min(granted & QOS, facts.qos)
    if not topic or body is None:
        log.warning("record at %d cannot be sent over MQTT: no topic or a broken body", message.physical_offset)
    elif facts.is_over(now_ms) or (outlet.bridge and outlet.returns(message)):
        pass  # done: too late, or it would go back to where it came from
    else:
        # [MQTT-4.8.2-3] [MQTT5-4.8.2-3]: the granted QoS is a member's own.
        grant = combine([granted], outlet.returns(message))
        if grant is not None:
            listed = grant.listed + facts.listed(now_ms) if outlet.five else b""
            flags = qos << 1 | (8 if delivery.count > 1 and qos else 0) | outlet.retain_flag(facts, grant.retains)
            state = Twice(taken) if qos == 2 else taken
            if outlet.publish(topic, body, flags, state, 0, listed) and qos:
                return
    taken.acknowledged()
