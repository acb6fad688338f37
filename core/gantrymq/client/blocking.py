"""The same clients for code without an event loop: each runs a private loop in a thread of its own and waits for it.

Safe to use from several threads; not across a fork.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, Self, TypeVar

from gantrymq.client import admin
from gantrymq.client.connecting.routes import MessageQueue, Route
from gantrymq.client.consuming import consumer, pulling, simple
from gantrymq.client.messages import OutMessage, SendResult
from gantrymq.client.producing import producer
from gantrymq.client.producing.transactions import LocalTransaction, TransactionResult
from gantrymq.client.pushing import push
from gantrymq.client.pushing.handlers import BatchHandler, Handler
from gantrymq.client.records import ReceivedMessage
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.remoting.constants import Perm

END_S: Final = 1.0
"""What tasks that do not end when they are cancelled are waited for."""

T = TypeVar("T")
B = TypeVar("B", bound="_Blocking")


class LoopThread:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="gantrymq-client", daemon=True)
        self._thread.start()

    @property
    def is_open(self) -> bool:
        """Until `stop`."""
        return self._thread.is_alive()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for `work`, which runs on the loop; its exception is raised here."""
        if not self._thread.is_alive():
            work.close()
            raise GantryError(ErrorCode.UNAVAILABLE, "this client is closed")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C while waiting
            raise

    def stop(self) -> None:
        """End loop and thread; may be called twice."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.run_until_complete(self._end_tasks())
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    async def _end_tasks(self) -> None:
        """Cancel what still runs, as `asyncio.run` does: a task that is forgotten in the middle of a connection leaves it open."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=END_S)


class _Blocking:
    def __init__(self) -> None:
        self._thread = LoopThread()

    async def _close(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Close the links and end the thread; may be called twice."""
        try:
            self._thread.run(self._close())
        except GantryError:
            return
        finally:
            self._thread.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _takes_arguments_of(twin: type) -> Callable[[type[B]], type[B]]:
    """For `help` and editors: the constructor's arguments by name, which it hands on. A `Client` of another loop is of no use here."""

    def show(blocking: type[B]) -> type[B]:
        own = inspect.signature(twin.__init__)  # type: ignore[misc]
        arguments = [argument for argument in own.parameters.values() if argument.name != "client"]
        blocking.__init__.__signature__ = own.replace(parameters=arguments)  # type: ignore[attr-defined]
        return blocking

    return show


@_takes_arguments_of(producer.Producer)
class BlockingProducer(_Blocking):
    """`Producer` without `await`."""

    def __init__(self, nameserver: str = "", **settings: Any) -> None:
        super().__init__()

        async def make() -> producer.Producer:
            return producer.Producer(nameserver, **settings)

        self._inner = _made(self._thread, make())

    def send(
        self,
        topic: str | OutMessage,
        body: bytes = b"",
        *,
        tag: str = "",
        keys: str | Iterable[str] = "",
        properties: Mapping[str, str] | None = None,
        sharding_key: str = "",
        delay_level: int = 0,
        deliver_at_ms: int = 0,
        deliver_after_s: float = 0.0,
    ) -> SendResult:
        """See `Producer.send`."""
        return self._thread.run(
            self._inner.send(
                topic, body, tag=tag, keys=keys, properties=properties, sharding_key=sharding_key, delay_level=delay_level,
                deliver_at_ms=deliver_at_ms, deliver_after_s=deliver_after_s,
            )
        )  # fmt: skip

    def send_many(self, messages: Sequence[OutMessage], window: int = producer.WINDOW) -> list[SendResult]:
        """See `Producer.send_many`."""
        return self._thread.run(self._inner.send_many(messages, window))

    def send_one_way(self, message: OutMessage) -> str:
        """See `Producer.send_one_way`."""
        return self._thread.run(self._inner.send_one_way(message))

    def send_batch(self, messages: Sequence[OutMessage]) -> list[SendResult]:
        """See `Producer.send_batch`."""
        return self._thread.run(self._inner.send_batch(messages))

    def send_transaction(self, message: OutMessage, local: LocalTransaction) -> TransactionResult:
        """See `Producer.send_transaction`."""
        return self._thread.run(self._inner.send_transaction(message, local))

    def recall(self, sent: SendResult | str) -> str:
        """See `Producer.recall`."""
        return self._thread.run(self._inner.recall(sent))

    def request(
        self, topic: str | OutMessage, body: bytes = b"", *, timeout_s: float = producer.REPLY_TIMEOUT_S
    ) -> ReceivedMessage:
        """See `Producer.request`."""
        return self._thread.run(self._inner.request(topic, body, timeout_s=timeout_s))

    def reply(self, request: ReceivedMessage, body: bytes, properties: Mapping[str, str] | None = None) -> SendResult:
        """See `Producer.reply`. May be called in a handler of a `BlockingPushConsumer`, which runs in another thread."""
        return self._thread.run(self._inner.reply(request, body, properties))

    async def _close(self) -> None:
        await self._inner.close()


@_takes_arguments_of(consumer.PullConsumer)
class BlockingPullConsumer(_Blocking):
    """`PullConsumer` without `await`."""

    def __init__(self, nameserver: str = "", **settings: Any) -> None:
        super().__init__()

        async def make() -> consumer.PullConsumer:
            return consumer.PullConsumer(nameserver, **settings)

        self._inner = _made(self._thread, make())

    def queues(self, topic: str) -> list[MessageQueue]:
        """See `PullConsumer.queues`."""
        return self._thread.run(self._inner.queues(topic))

    def assign(self, queues: Iterable[MessageQueue] | str) -> list[MessageQueue]:
        """See `PullConsumer.assign`."""
        return self._thread.run(self._inner.assign(queues))

    def subscribe(self, topic: str, *, tags: str = "*", sql: str = "") -> None:
        """See `PullConsumer.subscribe`."""
        self._thread.run(self._inner.subscribe(topic, tags=tags, sql=sql))

    def assignment(self) -> list[MessageQueue]:
        """See `PullConsumer.assignment`."""
        return self._inner.assignment()

    def position(self, queue: MessageQueue) -> int:
        """See `PullConsumer.position`."""
        return self._inner.position(queue)

    def seek(self, queue: MessageQueue, to: int | str) -> int:
        """See `PullConsumer.seek`."""
        return self._thread.run(self._inner.seek(queue, to))

    def seek_to_time(self, queue: MessageQueue, at_ms: int) -> int:
        """See `PullConsumer.seek_to_time`."""
        return self._thread.run(self._inner.seek_to_time(queue, at_ms))

    def pull(self, max_messages: int = pulling.PULL_MAX, wait_s: float = 15.0) -> list[ReceivedMessage]:
        """See `PullConsumer.pull`."""
        return self._thread.run(self._inner.pull(max_messages, wait_s))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ReceivedMessage:
        if not self._thread.is_open:
            raise StopIteration
        try:
            return self._thread.run(self._inner.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None

    def pull_queue(
        self, queue: MessageQueue, offset: int, max_messages: int = pulling.PULL_MAX, wait_s: float = 0.0
    ) -> pulling.PullResult:
        """See `PullConsumer.pull_queue`."""
        return self._thread.run(self._inner.pull_queue(queue, offset, max_messages, wait_s))

    def committed(self, queue: MessageQueue) -> int | None:
        """See `PullConsumer.committed`."""
        return self._thread.run(self._inner.committed(queue))

    def commit(self, offsets: dict[MessageQueue, int] | None = None) -> None:
        """See `PullConsumer.commit`."""
        self._thread.run(self._inner.commit(offsets))

    async def _close(self) -> None:
        await self._inner.close()


@_takes_arguments_of(push.PushConsumer)
class BlockingPushConsumer(_Blocking):
    """`PushConsumer` without `await`: plain functions as handlers run in threads. Begins with `start` or `with`."""

    def __init__(self, nameserver: str = "", **settings: Any) -> None:
        super().__init__()

        async def make() -> push.PushConsumer:
            return push.PushConsumer(nameserver, **settings)

        self._inner = _made(self._thread, make())

    def subscribe(
        self, topic: str, handler: Handler | BatchHandler | None = None, *, tags: str = "*", sql: str = ""
    ) -> Callable[[push.H], push.H]:
        """See `PushConsumer.subscribe`."""

        async def keep(function: Handler | BatchHandler) -> None:
            self._inner.subscribe(topic, function, tags=tags, sql=sql)

        def decorate(function: push.H) -> push.H:
            self._thread.run(keep(function))
            return function

        if handler is not None:
            self._thread.run(keep(handler))
        return decorate

    def start(self) -> None:
        """See `PushConsumer.start`."""
        self._thread.run(self._inner.start())

    def __enter__(self) -> Self:
        self.start()
        return self

    async def _close(self) -> None:
        await self._inner.close()


@_takes_arguments_of(simple.SimpleConsumer)
class BlockingSimpleConsumer(_Blocking):
    """`SimpleConsumer` without `await`."""

    def __init__(self, nameserver: str = "", **settings: Any) -> None:
        super().__init__()

        async def make() -> simple.SimpleConsumer:
            return simple.SimpleConsumer(nameserver, **settings)

        self._inner = _made(self._thread, make())

    def subscribe(self, topic: str, *, tags: str = "*", sql: str = "") -> None:
        """See `SimpleConsumer.subscribe`."""

        async def keep() -> None:
            self._inner.subscribe(topic, tags=tags, sql=sql)

        self._thread.run(keep())

    def receive(
        self,
        topic: str,
        max_messages: int = simple.RECEIVE_MAX,
        *,
        invisible_s: float = simple.INVISIBLE_S,
        wait_s: float = simple.WAIT_S,
    ) -> list[simple.Received]:
        """See `SimpleConsumer.receive`."""
        return self._thread.run(self._inner.receive(topic, max_messages, invisible_s=invisible_s, wait_s=wait_s))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> simple.Received:
        if not self._thread.is_open:
            raise StopIteration
        try:
            return self._thread.run(self._inner.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None

    def ack(self, received: simple.Received | simple.Receipt) -> None:
        """See `SimpleConsumer.ack`."""
        self._thread.run(self._inner.ack(received))

    def change_invisible(self, received: simple.Received, invisible_s: float) -> simple.Receipt:
        """See `SimpleConsumer.change_invisible`."""
        return self._thread.run(self._inner.change_invisible(received, invisible_s))

    async def _close(self) -> None:
        await self._inner.close()


class BlockingAdmin(_Blocking):
    """`Admin` without `await`."""

    def __init__(self, nameserver: str = "") -> None:
        super().__init__()

        async def make() -> admin.Admin:
            return admin.Admin(nameserver)

        self._inner = _made(self._thread, make())

    def cluster(self) -> admin.ClusterInfo:
        """See `Admin.cluster`."""
        return self._thread.run(self._inner.cluster())

    def create_topic(
        self,
        topic: str,
        queues: int = admin.QUEUES,
        cluster: str = "",
        broker: str = "",
        perm: int = Perm.READ | Perm.WRITE,
    ) -> list[str]:
        """See `Admin.create_topic`."""
        return self._thread.run(self._inner.create_topic(topic, queues, cluster, broker, perm))

    def delete_topic(self, topic: str) -> None:
        """See `Admin.delete_topic`."""
        self._thread.run(self._inner.delete_topic(topic))

    def topics(self, system: bool = False) -> list[str]:
        """See `Admin.topics`."""
        return self._thread.run(self._inner.topics(system))

    def route(self, topic: str) -> Route:
        """See `Admin.route`."""
        return self._thread.run(self._inner.route(topic))

    def topic_stats(self, topic: str) -> list[admin.QueueStats]:
        """See `Admin.topic_stats`."""
        return self._thread.run(self._inner.topic_stats(topic))

    def query_by_key(
        self,
        topic: str,
        key: str,
        limit: int = 64,
        begin_ms: int = 0,
        end_ms: int = admin.TIME_MAX_MS,
        unique: bool = False,
    ) -> list[ReceivedMessage]:
        """See `Admin.query_by_key`."""
        return self._thread.run(self._inner.query_by_key(topic, key, limit, begin_ms, end_ms, unique))

    def view(self, message_id: str, topic: str = "") -> ReceivedMessage:
        """See `Admin.view`."""
        return self._thread.run(self._inner.view(message_id, topic))

    def create_group(self, group: str, *, reconsume_max: int = 16, cluster: str = "") -> list[str]:
        """See `Admin.create_group`."""
        return self._thread.run(self._inner.create_group(group, reconsume_max=reconsume_max, cluster=cluster))

    def delete_group(self, group: str, *, offsets: bool = True) -> None:
        """See `Admin.delete_group`."""
        self._thread.run(self._inner.delete_group(group, offsets=offsets))

    def groups(self, system: bool = False) -> list[str]:
        """See `Admin.groups`."""
        return self._thread.run(self._inner.groups(system))

    def members(self, group: str) -> list[admin.GroupMember]:
        """See `Admin.members`."""
        return self._thread.run(self._inner.members(group))

    def progress(self, group: str, topic: str) -> list[admin.QueueProgress]:
        """See `Admin.progress`."""
        return self._thread.run(self._inner.progress(group, topic))

    def lag(self, group: str, topic: str) -> int:
        """See `Admin.lag`."""
        return self._thread.run(self._inner.lag(group, topic))

    def reset_offsets(self, group: str, topic: str, to: str | int) -> dict[MessageQueue, int]:
        """See `Admin.reset_offsets`."""
        return self._thread.run(self._inner.reset_offsets(group, topic, to))

    async def _close(self) -> None:
        await self._inner.close()


def _made(thread: LoopThread, work: Coroutine[Any, Any, T]) -> T:
    """What `work` makes; a constructor that raises leaves no thread behind."""
    try:
        return thread.run(work)
    except BaseException:
        thread.stop()
        raise
