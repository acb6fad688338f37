"""The same clients for code without an event loop: each runs a private loop in a thread of its own and waits for it.

Methods are those of the twin, made from it: same arguments, same text, same errors. Safe to use from several threads; not across a fork.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ClassVar, Concatenate, Final, Generic, ParamSpec, Protocol, Self, TypeVar

from gantrymq.client.admin import Admin
from gantrymq.client.consuming.consumer import PullConsumer
from gantrymq.client.consuming.simple import Received, SimpleConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.client.pushing.handlers import BatchHandler, Handler
from gantrymq.client.pushing.push import H, PushConsumer
from gantrymq.client.records import ReceivedMessage
from gantrymq.model.errors import ErrorCode, GantryError

END_S: Final = 1.0
"""What tasks that do not end when they are cancelled are waited for."""


class _Twin(Protocol):
    async def close(self) -> None: ...


T = TypeVar("T")
P = ParamSpec("P")
C = TypeVar("C", bound=_Twin)


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


class _Blocking(Generic[C]):
    """`twin`: the class that a subclass has the methods of."""

    _twin: ClassVar[Callable[..., Any]]

    def __init_subclass__(cls, *, twin: type[_Twin]) -> None:
        cls._twin = twin

        def make(self: _Blocking[Any], nameserver: str = "", **settings: Any) -> None:
            _Blocking.__init__(self, nameserver, **settings)

        # For `help` and editors: the constructor's arguments by name. A `Client` of another loop is of no use here.
        own = inspect.signature(twin.__init__)
        arguments = [argument for argument in own.parameters.values() if argument.name != "client"]
        make.__signature__ = own.replace(parameters=arguments)  # type: ignore[attr-defined]
        cls.__init__ = make  # type: ignore[method-assign]

    def __init__(self, nameserver: str = "", **settings: Any) -> None:
        self._thread = LoopThread()

        async def make() -> C:
            inner: C = type(self)._twin(nameserver, **settings)
            return inner

        try:
            self._inner = self._thread.run(make())
        except BaseException:  # a constructor that raises leaves no thread behind
            self._thread.stop()
            raise

    def close(self) -> None:
        """Close the links and end the thread; may be called twice."""
        try:
            self._thread.run(self._inner.close())
        except GantryError:
            return
        finally:
            self._thread.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _following(self, work: Coroutine[Any, Any, T]) -> T:
        """For `next`: after `close` there is nothing more."""
        if not self._thread.is_open:
            work.close()
            raise StopIteration
        try:
            return self._thread.run(work)
        except StopAsyncIteration:
            raise StopIteration from None


def waits(method: Callable[Concatenate[C, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[_Blocking[C], P], T]:
    """`method` without `await`."""

    @wraps(method)
    def wait(blocking: _Blocking[C], /, *args: P.args, **settings: P.kwargs) -> T:
        return blocking._thread.run(method(blocking._inner, *args, **settings))

    return wait


def calls(method: Callable[Concatenate[C, P], T]) -> Callable[Concatenate[_Blocking[C], P], T]:
    """`method`, which does not wait itself, on the loop that its client is of."""

    @wraps(method)
    def call(blocking: _Blocking[C], /, *args: P.args, **settings: P.kwargs) -> T:
        async def work() -> T:
            return method(blocking._inner, *args, **settings)

        return blocking._thread.run(work())

    return call


class BlockingProducer(_Blocking[Producer], twin=Producer):
    """`Producer` without `await`."""

    start = waits(Producer.start)
    send = waits(Producer.send)
    send_many = waits(Producer.send_many)
    send_one_way = waits(Producer.send_one_way)
    send_batch = waits(Producer.send_batch)
    send_transaction = waits(Producer.send_transaction)
    recall = waits(Producer.recall)
    request = waits(Producer.request)
    reply = waits(Producer.reply)


class BlockingPullConsumer(_Blocking[PullConsumer], twin=PullConsumer):
    """`PullConsumer` without `await`."""

    queues = waits(PullConsumer.queues)
    assign = waits(PullConsumer.assign)
    subscribe = waits(PullConsumer.subscribe)
    assignment = calls(PullConsumer.assignment)
    pause = calls(PullConsumer.pause)
    resume = calls(PullConsumer.resume)
    position = calls(PullConsumer.position)
    seek = waits(PullConsumer.seek)
    seek_to_time = waits(PullConsumer.seek_to_time)
    min_offset = waits(PullConsumer.min_offset)
    max_offset = waits(PullConsumer.max_offset)
    pull = waits(PullConsumer.pull)
    pull_queue = waits(PullConsumer.pull_queue)
    committed = waits(PullConsumer.committed)
    commit = waits(PullConsumer.commit)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ReceivedMessage:
        return self._following(self._inner.__anext__())


class BlockingPushConsumer(_Blocking[PushConsumer], twin=PushConsumer):
    """`PushConsumer` without `await`: plain functions as handlers run in threads. Begins with `start` or `with`."""

    def subscribe(
        self, topic: str, handler: Handler | BatchHandler | None = None, *, tags: str = "*", sql: str = ""
    ) -> Callable[[H], H]:
        """See `PushConsumer.subscribe`."""

        async def keep(function: Handler | BatchHandler) -> None:
            self._inner.subscribe(topic, function, tags=tags, sql=sql)

        def decorate(function: H) -> H:
            self._thread.run(keep(function))
            return function

        if handler is not None:
            self._thread.run(keep(handler))
        return decorate

    unsubscribe = calls(PushConsumer.unsubscribe)
    start = waits(PushConsumer.start)
    commit = waits(PushConsumer.commit)

    def __enter__(self) -> Self:
        self.start()
        return self


class BlockingSimpleConsumer(_Blocking[SimpleConsumer], twin=SimpleConsumer):
    """`SimpleConsumer` without `await`."""

    subscribe = calls(SimpleConsumer.subscribe)
    receive = waits(SimpleConsumer.receive)
    ack = waits(SimpleConsumer.ack)
    change_invisible = waits(SimpleConsumer.change_invisible)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Received:
        return self._following(self._inner.__anext__())


class BlockingAdmin(_Blocking[Admin], twin=Admin):
    """`Admin` without `await`."""

    cluster = waits(Admin.cluster)
    create_topic = waits(Admin.create_topic)
    delete_topic = waits(Admin.delete_topic)
    topics = waits(Admin.topics)
    route = waits(Admin.route)
    topic_stats = waits(Admin.topic_stats)
    query_by_key = waits(Admin.query_by_key)
    view = waits(Admin.view)
    create_group = waits(Admin.create_group)
    delete_group = waits(Admin.delete_group)
    groups = waits(Admin.groups)
    members = waits(Admin.members)
    progress = waits(Admin.progress)
    lag = waits(Admin.lag)
    set_offsets = waits(Admin.set_offsets)
    reset_offsets = waits(Admin.reset_offsets)
