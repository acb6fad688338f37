"""The native client: producers, consumers and administration, for an event loop or (`Blocking...`) without one.

Speaks RocketMQ's Remoting protocol, so it works against a RocketMQ cluster as well; see docs/client.md.
"""

from gantrymq.client.admin import Admin, ClusterInfo, GroupMember, QueueProgress, QueueStats
from gantrymq.client.blocking import (
    BlockingAdmin,
    BlockingProducer,
    BlockingPullConsumer,
    BlockingPushConsumer,
    BlockingSimpleConsumer,
)
from gantrymq.client.client import Client
from gantrymq.client.consumer import PullConsumer
from gantrymq.client.errors import BrokerError
from gantrymq.client.handlers import DEAD_LETTER, RetryLater
from gantrymq.client.messages import OutMessage, SendResult
from gantrymq.client.producer import PartialSendError, Producer
from gantrymq.client.pulling import PullResult, Subscription
from gantrymq.client.push import PushConsumer
from gantrymq.client.records import ReceivedMessage, decode_records
from gantrymq.client.routes import MessageQueue, Route
from gantrymq.client.simple import Receipt, Received, SimpleConsumer
from gantrymq.client.transactions import Fate, TransactionResult
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


def __dir__() -> list[str]:
    """What is public; the modules behind it are not."""
    return sorted(__all__)
