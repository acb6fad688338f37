"""Differences between RabbitMQ 4.0.5 and this broker that stay, each with its reason; docs/mapping/amqp.md lists the reasons."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True)
class Accepted:
    """`real`, `ours`: patterns found in what is shown of the answers."""

    reason: str
    real: str
    ours: str

    def covers(self, real: Any, ours: Any) -> bool:
        return re.search(self.real, str(real)) is not None and re.search(self.ours, str(ours)) is not None


REFUSED: Final = r"'channel.close', \[40[56], "

ACCEPTED: Final = (
    Accepted("classic queues take `x-delivery-limit`", "x-delivery-limit.* of queue type rabbit_classic_queue", "queue.declare-ok"),
    Accepted("quorum queues take `x-max-priority`", "x-max-priority.* of queue type rabbit_quorum_queue", "queue.declare-ok"),
    Accepted("a wrong `x-consumer-timeout` is refused", "queue.declare-ok", REFUSED + ".*x-consumer-timeout"),
    Accepted("unbinding from somebody else's queue is refused without a binding, too", "queue.unbind-ok", REFUSED + ".*exclusive access"),
    Accepted("`basic.nack` for one publish has neither `multiple` nor `requeue` set", r"'basic.nack', \[\d+, True, True\]", r"'basic.nack', \[\d+, False, False\]"),
    Accepted("an `expiration` above 4,294,967,295 is refused", r"^\[\]$", REFUSED + ".*value_too_big"),
    Accepted("keys in `CC` and `BCC` that are no texts are refused", r"^\[\]$", REFUSED + ".*unacceptable_type_in_header"),
    Accepted("the management API says in words of its own what is wrong with a policy", r"'http', 400, .*(Validation failed|key_missing)", r"'http', 400, "),
    Accepted("an empty property list is `{}` in the management API", r"'properties': \[\]", r"'properties': \{\}"),
)  # fmt: skip
