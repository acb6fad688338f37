"""Who consumes how: QUERY_ASSIGNMENT and SET_MESSAGE_REQUEST_MODE (QueryAssignmentProcessor, MessageRequestModeManager).

A mode is a row of table `request_mode`, key `topic@group`, value the request's body; `config/messageRequestMode.json` is its export.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from gantrymq.model import names
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.remoting.constants import RequestCode, ResponseCode
from gantrymq.remoting.json_bodies import QueueName, decode, encode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gantrymq.administration.groups import Groups
    from gantrymq.broker.tables.tables import Tables
    from gantrymq.broker.topics import TopicTable
    from gantrymq.remoting.codec import Command
    from gantrymq.remoting.registration.route_finder import RouteFinder
    from gantrymq.remoting.server.clients.registry import Clients
    from gantrymq.remoting.server.reply import Reply

TABLE: Final = "request_mode"

MODES_MAX: Final = 100_000
"""(topic, group) pairs with a mode of their own."""

AVERAGELY: Final = "AVG"
BY_CIRCLE: Final = "AVG_BY_CIRCLE"
"""Names of AllocateMessageQueueAveragely and AllocateMessageQueueAveragelyByCircle: the strategies a RocketMQ broker has."""


class RequestMode(msgspec.Struct, rename="camel"):
    """SetMessageRequestModeRequestBody. `pop_share_queue_num`: with POP, each queue is read by so many more clients; 0 or less: by all."""

    topic: str = ""
    consumer_group: str = ""
    mode: Literal["PULL", "POP"] = "PULL"
    pop_share_queue_num: int = 0


class AssignmentRequest(msgspec.Struct, rename="camel"):
    """QueryAssignmentRequestBody."""

    topic: str
    consumer_group: str
    client_id: str
    strategy_name: str = AVERAGELY
    message_model: str = "CLUSTERING"


class Assignment(msgspec.Struct, rename="camel"):
    """MessageQueueAssignment."""

    message_queue: QueueName
    mode: str


class Assignments(msgspec.Struct, rename="camel", omit_defaults=True):
    """QueryAssignmentResponseBody; None: the client keeps what it has."""

    message_queue_assignments: list[Assignment] | None = None


def averagely(queues: Sequence[QueueName], clients: Sequence[str], client: str) -> list[QueueName]:
    """AllocateMessageQueueAveragely: neighbouring queues, the first clients one more."""
    if client not in clients:
        return []
    index = clients.index(client)
    share, more = divmod(len(queues), len(clients))
    size = share + (index < more) if len(queues) > len(clients) else 1
    first = index * size if index < more or len(queues) <= len(clients) else index * size + more
    return list(queues[first : first + size])


def by_circle(queues: Sequence[QueueName], clients: Sequence[str], client: str) -> list[QueueName]:
    """AllocateMessageQueueAveragelyByCircle: every n-th queue."""
    return list(queues[clients.index(client) :: len(clients)]) if client in clients else []


STRATEGIES: Final = {AVERAGELY: averagely, BY_CIRCLE: by_circle}


def for_pop(
    strategy: Callable[[Sequence[QueueName], Sequence[str], str], list[QueueName]],
    queues: Sequence[QueueName],
    clients: Sequence[str],
    client: str,
    share: int,
) -> list[QueueName]:
    """QueryAssignmentProcessor.allocate4Pop: every broker's queues as one (-1), or those of the `share` next clients, too."""
    if share <= 0 or share >= len(clients) - 1:
        return list(dict.fromkeys([QueueName(queue.topic, queue.broker_name, -1) for queue in queues]))
    if client not in clients:
        return []
    index = clients.index(client)
    if len(clients) > len(queues):
        return [queues[index % len(queues)]]
    found: list[QueueName] = []
    for step in range(share + 1):
        found += strategy(queues, clients, clients[(index + step) % len(clients)])
    return list(dict.fromkeys(found))


@dataclass(slots=True)
class ModeServices:
    """What these requests need of the broker. `put`: as `Broker.put`."""

    topics: TopicTable
    tables: Tables
    groups: Groups
    clients: Clients
    routes: RouteFinder
    broker_name: str
    put: Callable[..., None]


def mode_of(services: ModeServices, topic: str, group: str) -> RequestMode:
    """The mode that was set, else PULL (defaultMessageRequestMode)."""
    row = services.tables.rows(TABLE).get(f"{topic}@{group}")
    return decode(row, RequestMode) if row is not None else RequestMode(topic, group)


def query_assignment(command: Command, reply: Reply, services: ModeServices) -> None:
    """QUERY_ASSIGNMENT: the topic's queues, at every broker, that a client reads, and whether it pulls or pops them."""
    request = decode(command.body, AssignmentRequest)
    mode = mode_of(services, request.topic, request.consumer_group)

    def found(others: dict[str, int] | None) -> None:
        if reply.open:
            queues = _queues(services, request.topic, others or {})
            assignments = Assignments(_assign(services, request, mode, queues))
            reply.respond(command, body=encode(assignments))

    if request.topic.startswith(names.LMQ_PREFIX):
        found(None)
    else:
        services.routes.find(request.topic, found)


def _queues(services: ModeServices, topic: str, others: dict[str, int]) -> list[QueueName]:
    """All queues of a topic that can be read, in the order that every broker gives them (MessageQueue.compareTo). `others`: what
    the nameservers say, which may be older than what this broker knows of itself."""
    here = services.topics.topics.get(topic)
    if here is not None and here.system:
        return []
    counts = {name: count for name, count in others.items() if name != services.broker_name}
    if here is not None:
        counts[services.broker_name] = 1 if topic.startswith(names.LMQ_PREFIX) else here.config.read_queues
    return [QueueName(topic, name, number) for name in sorted(counts) for number in range(counts[name])]


def _assign(
    services: ModeServices, request: AssignmentRequest, mode: RequestMode, queues: list[QueueName]
) -> list[Assignment] | None:
    if not queues:
        return None
    if request.message_model != "BROADCASTING":
        clients = sorted(services.clients.client_ids(request.consumer_group))
        strategy = STRATEGIES.get(request.strategy_name)
        if not clients or strategy is None:
            return None
        if mode.mode == "POP":
            queues = for_pop(strategy, queues, clients, request.client_id, mode.pop_share_queue_num)
        else:
            queues = strategy(queues, clients, request.client_id)
    return [Assignment(queue, mode.mode) for queue in queues]


def set_request_mode(command: Command, reply: Reply, services: ModeServices) -> None:
    """SET_MESSAGE_REQUEST_MODE."""
    request = decode(command.body, RequestMode)
    if request.topic.startswith(names.RETRY_PREFIX):
        raise GantryError(ErrorCode.NO_PERMISSION, "retry topic is not allowed to set mode")
    topic = services.topics.topics.get(request.topic)
    if topic is None or topic.system:
        raise GantryError(ErrorCode.TOPIC_NOT_FOUND, f"topic[{request.topic[:255]}] not exist")
    services.groups.find(request.consumer_group)
    rows = services.tables.rows(TABLE)
    key = f"{request.topic}@{request.consumer_group}"
    if key not in rows and len(rows) >= MODES_MAX:
        raise GantryError(ErrorCode.LIMIT_REACHED, f"{MODES_MAX} message request modes are set")

    def stored(token: object, result: object) -> None:
        if isinstance(result, GantryError):
            reply.refuse(command, ResponseCode.SYSTEM_ERROR, result.text)
        else:
            reply.respond(command)

    services.put(TABLE, [(key, encode(request))], None, stored)


HANDLERS: Final = {
    RequestCode.QUERY_ASSIGNMENT: query_assignment,
    RequestCode.SET_MESSAGE_REQUEST_MODE: set_request_mode,
}
