"""The same clients for code without an event loop: each runs a private loop in a thread of its own and waits for it.

Safe to use from several threads; not across a fork.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any, Self, TypeVar

from gantrymq.client import admin, consumer, producer, pulling
from gantrymq.client.messages import OutMessage, SendResult
from gantrymq.client.records import ReceivedMessage
from gantrymq.client.routes import MessageQueue, Route
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.remoting.constants import Perm

T = TypeVar("T")


class LoopThread:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="gantrymq-client", daemon=True)
        self._thread.start()

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
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()


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


class BlockingProducer(_Blocking):
    """`producer.Producer` without `await`; takes the same arguments."""

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
    ) -> SendResult:
        """See `Producer.send`."""
        return self._thread.run(
            self._inner.send(topic, body, tag=tag, keys=keys, properties=properties, sharding_key=sharding_key)
        )

    def send_many(self, messages: Sequence[OutMessage], window: int = producer.WINDOW) -> list[SendResult]:
        """See `Producer.send_many`."""
        return self._thread.run(self._inner.send_many(messages, window))

    def send_one_way(self, message: OutMessage) -> str:
        """See `Producer.send_one_way`."""
        return self._thread.run(self._inner.send_one_way(message))

    async def _close(self) -> None:
        await self._inner.close()


class BlockingPullConsumer(_Blocking):
    """`consumer.PullConsumer` without `await`; takes the same arguments."""

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


class BlockingAdmin(_Blocking):
    """`admin.Admin` without `await`."""

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

    async def _close(self) -> None:
        await self._inner.close()


def _made(thread: LoopThread, work: Coroutine[Any, Any, T]) -> T:
    """What `work` makes; a constructor that raises leaves no thread behind."""
    try:
        return thread.run(work)
    except BaseException:
        thread.stop()
        raise
