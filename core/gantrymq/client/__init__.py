"""The native client: producers, consumers and administration, for an event loop or (`Blocking...`) without one.

Speaks RocketMQ's Remoting protocol, so it works against a RocketMQ cluster as well; see docs/client.md. A name is imported when it
is first asked for: whoever wants one of them does not wait for all.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gantrymq.client.admin import Admin, ClusterInfo, GroupMember, QueueProgress, QueueStats
    from gantrymq.client.blocking import (
        BlockingAdmin,
        BlockingProducer,
        BlockingPullConsumer,
        BlockingPushConsumer,
        BlockingSimpleConsumer,
    )
    from gantrymq.client.client import Client
    from gantrymq.client.connecting.routes import MessageQueue, Route
    from gantrymq.client.consuming.consumer import PullConsumer
    from gantrymq.client.consuming.pulling import PullResult, Subscription
    from gantrymq.client.consuming.simple import Receipt, Received, SimpleConsumer
    from gantrymq.client.errors import BrokerError
    from gantrymq.client.messages import OutMessage, SendResult
    from gantrymq.client.producing.producer import PartialSendError, Producer
    from gantrymq.client.producing.transactions import Fate, TransactionResult
    from gantrymq.client.pushing.handlers import DEAD_LETTER, RetryLater
    from gantrymq.client.pushing.push import PushConsumer
    from gantrymq.client.records import ReceivedMessage, decode_records
    from gantrymq.model.errors import ErrorCode, GantryError

__all__ = [
    "DEAD_LETTER",
    "Admin",
    "BlockingAdmin",
    "BlockingProducer",
    "BlockingPullConsumer",
    "BlockingPushConsumer",
    "BlockingSimpleConsumer",
    "BrokerError",
    "Client",
    "ClusterInfo",
    "ErrorCode",
    "Fate",
    "GantryError",
    "GroupMember",
    "MessageQueue",
    "OutMessage",
    "PartialSendError",
    "Producer",
    "PullConsumer",
    "PullResult",
    "PushConsumer",
    "QueueProgress",
    "QueueStats",
    "Receipt",
    "Received",
    "ReceivedMessage",
    "RetryLater",
    "Route",
    "SendResult",
    "SimpleConsumer",
    "Subscription",
    "TransactionResult",
    "decode_records",
]

_HOMES: Final = {
    "gantrymq.client.admin": ("Admin", "ClusterInfo", "GroupMember", "QueueProgress", "QueueStats"),
    "gantrymq.client.blocking": (
        "BlockingAdmin",
        "BlockingProducer",
        "BlockingPullConsumer",
        "BlockingPushConsumer",
        "BlockingSimpleConsumer",
    ),
    "gantrymq.client.client": ("Client",),
    "gantrymq.client.consuming.consumer": ("PullConsumer",),
    "gantrymq.client.errors": ("BrokerError",),
    "gantrymq.client.pushing.handlers": ("DEAD_LETTER", "RetryLater"),
    "gantrymq.client.messages": ("OutMessage", "SendResult"),
    "gantrymq.client.producing.producer": ("PartialSendError", "Producer"),
    "gantrymq.client.consuming.pulling": ("PullResult", "Subscription"),
    "gantrymq.client.pushing.push": ("PushConsumer",),
    "gantrymq.client.records": ("ReceivedMessage", "decode_records"),
    "gantrymq.client.connecting.routes": ("MessageQueue", "Route"),
    "gantrymq.client.consuming.simple": ("Receipt", "Received", "SimpleConsumer"),
    "gantrymq.client.producing.transactions": ("Fate", "TransactionResult"),
    "gantrymq.model.errors": ("ErrorCode", "GantryError"),
}
"""Where each name stands, for those who run; those who check types read the imports above."""
_HOME: Final = {name: module for module, names in _HOMES.items() for name in names}

if not TYPE_CHECKING:  # to a type checker it would say that there is every name

    def __getattr__(name: str) -> object:
        """A public name, from its module."""
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_HOME[name]), name)
        return value


def __dir__() -> list[str]:
    """What is public; the modules behind it are not."""
    return sorted(__all__)
