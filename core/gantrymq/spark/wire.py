"""Blocking Remoting connections of an executor or of the driver: several requests under way on one socket, no loop, no thread.

Kept per process and thread, because Spark uses a Python worker again for the next task; a forked worker opens its own.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from gantrymq.client.connecting.routes import MessageQueue, Route, loads, parse_route
from gantrymq.client.connecting.signing import TLS_VARIABLE, Signer, tls_of_environment
from gantrymq.client.consuming.offsets import place
from gantrymq.client.consuming.pulling import parse_pull, pull_fields
from gantrymq.client.errors import expect_success, number
from gantrymq.client.records import decode_records
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.model.limits import FRAME_BYTES_MAX
from gantrymq.model.names import AUTO_CREATE_TEMPLATE
from gantrymq.net.dial.connector import connect_blocking
from gantrymq.remoting.codec import Command, FrameError, decode_binary_header, decode_json_header, encode
from gantrymq.remoting.constants import HEADER_BINARY, RequestCode

T = TypeVar("T")

TIMEOUT_S: Final = 10.0
"""For one answer; no request of the source asks the broker to wait."""
RETRY_FOR_S: Final = 30.0
"""A broker or nameserver that restarts must not end a query: an exception on the driver would."""
FIRST_FOR_S: Final = 7.0
"""The same before anything has answered: nobody waits longer to hear that an address is wrong."""
ASK_S: Final = 3.5
"""For an answer about routes and offsets, which takes no disk; asked again while `RETRY_FOR_S` lasts."""
PAUSE_FIRST_S: Final = 0.1
PAUSE_MAX_S: Final = 2.0
SAMPLE: Final = 32
"""Messages of which a mean size is made."""
LINKS_MAX: Final = 64
"""Connections kept per thread; more brokers than that take turns."""
READ_BUFFER_BYTES: Final = 64 * 1024

_PREFIX: Final = struct.Struct(">II")
_RETRY: Final = frozenset({ErrorCode.UNAVAILABLE, ErrorCode.BUSY, ErrorCode.SHUTTING_DOWN})


class Wire:
    """One blocking connection. After an error it is closed and of no more use. User and TLS are those of the process's environment, as of any client
    (GANTRY_USER, GANTRY_PASSWORD, GANTRY_TLS_CA): an option of Spark would stand in plans and logs."""

    def __init__(self, address: str, timeout_s: float = TIMEOUT_S) -> None:
        self.address = address
        self._opaque = 0
        self._unread: dict[int, Command] = {}
        self._abandoned: set[int] = set()
        self._signer = Signer.of("", "")
        try:
            tls = tls_of_environment()
        except OSError as error:
            raise GantryError(ErrorCode.UNAVAILABLE, f"{TLS_VARIABLE}: {error}") from None
        self._socket = connect_blocking(address, timeout_s, tls)
        self._file = self._socket.makefile("rb", READ_BUFFER_BYTES)
        self.is_open = True

    def wait_at_most(self, timeout_s: float) -> None:
        """For each answer from now on."""
        self._socket.settimeout(timeout_s)

    def post(self, commands: Iterable[Command]) -> list[int]:
        """Send requests in one write; their opaques, to `receive` with."""
        frames, opaques = [], []
        for command in commands:
            self._opaque += 1
            command.opaque = self._opaque
            opaques.append(self._opaque)
            if self._signer is not None:
                self._signer.sign(command)
            frames.append(encode(command))
        try:
            self._socket.sendall(b"".join(frames))
        except OSError as error:
            self._lost(error)
        return opaques

    def receive(self, opaque: int) -> Command:
        """The answer to one posted request, whatever its code; answers to others are kept meanwhile."""
        while opaque not in self._unread:
            answer = self._read()
            if answer.opaque in self._abandoned:
                self._abandoned.discard(answer.opaque)
            elif answer.is_response:
                self._unread[answer.opaque] = answer
        return self._unread.pop(opaque)

    def abandon(self, opaque: int) -> None:
        """Nobody wants this answer any more."""
        if self._unread.pop(opaque, None) is None:
            self._abandoned.add(opaque)

    def request(self, command: Command) -> Command:
        """Post and receive."""
        return self.receive(self.post([command])[0])

    def close(self) -> None:
        """Close the socket; may be called twice."""
        self.is_open = False
        self._file.close()
        self._socket.close()

    def _read(self) -> Command:
        try:
            prefix = self._file.read(8)
            if len(prefix) < 8:
                raise ConnectionError("closed by the other side")
            total, marker = _PREFIX.unpack(prefix)
            header_size = marker & 0xFFFFFF
            if total > FRAME_BYTES_MAX or header_size + 4 > total:
                raise FrameError(f"a frame of {total + 4} bytes with a header of {header_size}")
            header = self._file.read(header_size)
            body_size = total - 4 - header_size
            body = self._file.read(body_size) if body_size else b""
            if len(header) < header_size or len(body) < body_size:
                raise ConnectionError("closed by the other side")
            decode = decode_binary_header if marker >> 24 == HEADER_BINARY else decode_json_header
            return decode(header, body)
        except (OSError, FrameError) as error:
            self._lost(error)
            raise AssertionError from error  # _lost always raises

    def _lost(self, error: Exception) -> None:
        self.close()
        text = f"connection to {self.address} was lost: {str(error) or type(error).__name__}"
        raise GantryError(ErrorCode.UNAVAILABLE, text) from None


class _Kept(threading.local):
    def __init__(self) -> None:
        self.process = os.getpid()
        self.wires: dict[str, Wire] = {}


_kept = _Kept()


def wire(address: str, timeout_s: float = TIMEOUT_S) -> Wire:
    """The open connection of this process and thread to `address`, which waits for so long at most; raises UNAVAILABLE."""
    if _kept.process != os.getpid():  # forked: the sockets are the parent's
        _kept.process, _kept.wires = os.getpid(), {}
    found = _kept.wires.pop(address, None)
    if found is None or not found.is_open:
        found = Wire(address, timeout_s)
    found.wait_at_most(timeout_s)
    _kept.wires[address] = found
    if len(_kept.wires) > LINKS_MAX:
        _kept.wires.pop(next(iter(_kept.wires))).close()
    return found


def close_all() -> None:
    """Close the connections of this process and thread."""
    if _kept.process == os.getpid():
        for found in _kept.wires.values():
            found.close()
    _kept.wires = {}


class Patience:
    """Pauses between attempts, longer each time, until `limit_s` have passed since the last success."""

    def __init__(self, limit_s: float = RETRY_FOR_S) -> None:
        self._limit_s = limit_s
        self.success()

    def success(self) -> None:
        """Start anew."""
        self._deadline = time.monotonic() + self._limit_s
        self._pause_s = PAUSE_FIRST_S

    def wait(self, error: GantryError) -> None:
        """Sleep, or raise `error` if it is none that goes away or the time is up."""
        if error.code not in _RETRY or time.monotonic() + self._pause_s > self._deadline:
            raise error
        time.sleep(self._pause_s)
        self._pause_s = min(self._pause_s * 2, PAUSE_MAX_S)


def patiently(work: Callable[[], T], limit_s: float = RETRY_FOR_S) -> T:
    """`work()`, again and again while servers cannot be reached."""
    patience = Patience(limit_s)
    while True:
        try:
            return work()
        except GantryError as error:
            patience.wait(error)


class Metadata:
    """Routes and queue ends, asked for anew at each call."""

    def __init__(self, nameservers: Sequence[str]) -> None:
        self._nameservers = list(nameservers)

    def route(self, topic: str) -> Route:
        """Raises TOPIC_NOT_FOUND; UNAVAILABLE naming every nameserver."""
        fields = {"topic": topic, "acceptStandardJsonOnly": "true"}
        answer, address = self._ask(Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields))
        return parse_route(topic, expect_success(answer, f"route of topic {topic!r}", address).body)

    def topics(self) -> list[str]:
        """Names of all topics that a nameserver knows; not those that brokers register under their own and their cluster's name. Raises
        UNAVAILABLE."""
        answer, address = self._ask(Command(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {}))
        names = set(loads(expect_success(answer, "list of topics", address).body)["topicList"])
        tables = self._cluster()
        return sorted(names.difference(tables["brokerAddrTable"], tables["clusterAddrTable"]))

    def brokers(self) -> dict[str, str]:
        """Names of all brokers with the address of each one's first member."""
        table = self._cluster()["brokerAddrTable"]
        addresses = {name: data["brokerAddrs"] for name, data in table.items()}
        return {name: found[min(found, key=int)] for name, found in addresses.items() if found}

    def _cluster(self) -> Any:
        answer, address = self._ask(Command(RequestCode.GET_BROKER_CLUSTER_INFO, {}))
        return loads(expect_success(answer, "list of brokers", address).body)

    def _ask(self, command: Command) -> tuple[Command, str]:
        """The answer of the first nameserver that gives one, and its address."""
        timeout_s = min(ASK_S, FIRST_FOR_S / len(self._nameservers))
        why = []
        for address in list(self._nameservers):
            try:
                answer = wire(address, timeout_s).request(command)
            except GantryError as error:
                why.append(error.text)
                continue
            self._nameservers.remove(address)
            self._nameservers.insert(0, address)
            return answer, address
        hint = "start one there (`gantry up`), or name another: option nameserver, or NAMESRV_ADDR"
        raise GantryError(ErrorCode.UNAVAILABLE, f"no nameserver answers: {'; '.join(why)}; {hint}")

    def reach(self, topics: Sequence[str], limit_s: float = FIRST_FOR_S) -> None:
        """Return when a nameserver has answered and each broker that has `topics`. Raises UNAVAILABLE where one does not in time; a topic that
        is not there yet is none of its business."""

        def ask() -> None:
            for topic in topics or (AUTO_CREATE_TEMPLATE,):
                try:
                    self.offsets(self.queues([topic]), RequestCode.GET_MAX_OFFSET)
                except GantryError as error:
                    # Whoever answers is there; a broker says so of the template, which has no queues.
                    if error.code is not ErrorCode.TOPIC_NOT_FOUND:
                        raise

        patiently(ask, limit_s)

    def queues(self, topics: Iterable[str]) -> dict[MessageQueue, str]:
        """Every queue of the topics that can be read, with its broker's address."""
        result = {}
        for topic in topics:
            route = self.route(topic)
            for queue in route.read_queues():
                result[queue] = route.address(queue.broker)
        return result

    def offsets(self, queues: dict[MessageQueue, str], code: RequestCode) -> dict[MessageQueue, int]:
        """GET_MIN_OFFSET or GET_MAX_OFFSET of all queues, one write per broker."""
        return self._numbers(queues, code, lambda queue: {})

    def offsets_at(self, queues: dict[MessageQueue, str], times: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        """Offset of the first message stored at the queue's time (milliseconds) or later, else its next offset."""

        def fields(queue: MessageQueue) -> dict[str, str]:
            return {"timestamp": str(times[queue]), "boundaryType": "lower"}

        return self._numbers(queues, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, fields)

    def _numbers(
        self, queues: dict[MessageQueue, str], code: RequestCode, more: Callable[[MessageQueue], dict[str, str]]
    ) -> dict[MessageQueue, int]:
        result = {}
        for queue, answer, address in self._each(queues, code, lambda queue: {**place(queue), **more(queue)}):
            what = f"{code.name} of {queue}"
            result[queue] = number(expect_success(answer, what, address), "offset", what, address)
        return result

    def record_bytes(
        self, queues: dict[MessageQueue, str], at: Mapping[MessageQueue, int], group: str
    ) -> dict[MessageQueue, int]:
        """Mean size of up to `SAMPLE` messages of each queue, from its offset in `at` on; 0 where there is none."""
        result = {}
        for queue, answer, address in self._each(
            queues, RequestCode.PULL_MESSAGE, lambda queue: pull_fields(group, queue, at[queue], SAMPLE, (), 0)
        ):
            pulled, body = parse_pull(answer, queue, address)
            result[queue] = len(body) // max(1, pulled.next_offset - at[queue]) if body else 0
        return result

    def stored_at(
        self, queues: dict[MessageQueue, str], at: Mapping[MessageQueue, int], group: str
    ) -> dict[MessageQueue, int]:
        """When the message at each queue's offset was stored, in milliseconds; without those that are not there."""
        result = {}
        for queue, answer, address in self._each(
            queues, RequestCode.PULL_MESSAGE, lambda queue: pull_fields(group, queue, at[queue], 1, (), 0)
        ):
            _, body = parse_pull(answer, queue, address)
            for message in decode_records(body) if body else ():
                if message.queue_offset == at[queue]:
                    result[queue] = message.store_ms
        return result

    def commit(self, queues: dict[MessageQueue, str], offsets: Mapping[MessageQueue, int], group: str) -> None:
        """Keep the group's offsets at the brokers of its queues."""

        def fields(queue: MessageQueue) -> dict[str, str]:
            return {"consumerGroup": group, **place(queue), "commitOffset": str(offsets[queue])}

        for queue, answer, address in self._each(queues, RequestCode.UPDATE_CONSUMER_OFFSET, fields):
            expect_success(answer, f"commit of {queue}", address)

    @staticmethod
    def _each(
        queues: dict[MessageQueue, str], code: RequestCode, fields: Callable[[MessageQueue], dict[str, str]]
    ) -> Iterator[tuple[MessageQueue, Command, str]]:
        """One request for each queue, one write per broker; each queue, its answer, its broker's address."""
        by_address: dict[str, list[MessageQueue]] = {}
        for queue, address in queues.items():
            by_address.setdefault(address, []).append(queue)
        for address, members in by_address.items():
            link = wire(address, ASK_S)
            opaques = link.post([Command(code, fields(queue)) for queue in members])
            answers = [link.receive(opaque) for opaque in opaques]
            for queue, answer in zip(members, answers, strict=True):
                yield queue, answer, address
