"""What a message says about where it was published to: names that stand for the default exchange, native tags of routing keys; names in a vhost.

Exchanges, queues and policies of another vhost than `/` have a full name: the vhost, a line end, the name. Names of `/` are as they are. No
declared name has a line end (`clean` drops them, as RabbitMQ does), so the two are told apart. What a client or a policy says elsewhere that
leads to a queue or an exchange (routing keys, dead letter and alternate exchanges) may have one: `full_name` sees to it that it leads nowhere.
"""

from __future__ import annotations

from typing import Final

from gantrymq.model import names

KIND: Final = "amqp"
DEFAULT_EXCHANGE: Final = "(default)"
"""The default exchange in `Message.exchange` and in expressions: its own name is empty."""

DIRECT_TOPIC: Final = "rmq_sys_amqp_direct"
"""Where records for queues without a topic of their own lie (exclusive, auto-delete, not durable, server-named): tag = queue."""


def tag_of(key: str) -> str:
    """Native tag of a routing key: words between the dots; an empty key has none. Raises NAME_INVALID."""
    tag = names.encode_tag(key.split(".")) if key else ""
    return key if tag == key else tag  # one object in all tables


ROOT: Final = "/"
"""The vhost that is always there, whose names have nothing in front."""


def prefix_of(vhost: str) -> str:
    """What stands in front of the names of a vhost."""
    return "" if vhost == ROOT else vhost + "\n"


def clean(name: str) -> str:
    """RabbitMQ drops line ends from the names of queues and exchanges (rabbit_channel: strip_cr_lf)."""
    return name.replace("\r", "").replace("\n", "")


def full_name(prefix: str, name: str) -> str:
    """What a name means in the vhost that has this prefix. With a line end it could be another vhost's: nothing has the name that it gets."""
    return prefix + name.replace("\n", "\r")


def own_prefix(name: str) -> str:
    """What stands in front of this full name."""
    vhost, end, _ = name.rpartition("\n")
    return vhost + end


def vhost_of(name: str) -> str:
    """The vhost of a full name."""
    vhost, end, _ = name.rpartition("\n")
    return vhost if end else ROOT


def local(name: str) -> str:
    """A full name as its vhost's clients have it."""
    return name.rpartition("\n")[2]
