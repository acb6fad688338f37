"""A nameserver and brokers in memory on one loop thread: just enough Remoting for client and Spark tests, with faults on demand."""

import asyncio
import struct
import time
import zlib
from dataclasses import dataclass, field

import msgspec

from gantrymq.client.blocking import LoopThread
from gantrymq.model import properties as props
from gantrymq.model.names import java_hash
from gantrymq.remoting.codec import Command, FrameReader, encode, response
from gantrymq.remoting.constants import RequestCode, ResponseCode

HEAD = struct.Struct(">IIIiiqqiq8sq8siqi")
LOOPBACK = b"\x7f\0\0\1"


def host_bytes(port: int) -> bytes:
    return LOOPBACK + port.to_bytes(4, "big")


def make_record(
    topic: str,
    queue_id: int,
    offset: int,
    body: bytes,
    properties: bytes = b"",
    *,
    physical: int = 0,
    born_ms: int = 1_700_000_000_000,
    store_ms: int = 1_700_000_000_001,
    sys_flag: int = 0,
    born_host: bytes = host_bytes(1),
    store_host: bytes = host_bytes(2),
    second: bool = False,
) -> bytes:
    """One stored record, written plainly, field by field: the oracle's side of every decoder test."""
    name = topic.encode()
    length = struct.pack(">H" if second else ">B", len(name))
    flags = sys_flag | (0x10 if len(born_host) == 20 else 0) | (0x20 if len(store_host) == 20 else 0)
    rest = struct.pack(">iiqqiq", queue_id, 0, offset, physical, flags, born_ms) + born_host
    rest += struct.pack(">q", store_ms) + store_host + struct.pack(">iq", 0, 0)
    rest += struct.pack(">i", len(body)) + body + length + name + struct.pack(">H", len(properties)) + properties
    magic = 0xDAA320AB if second else 0xDAA320A7
    return struct.pack(">III", len(rest) + 12, magic, zlib.crc32(body) & 0x7FFFFFFF) + rest


@dataclass
class Stored:
    offset: int
    tag_hash: int
    record: bytes
    store_ms: int


@dataclass
class FakeQueue:
    first: int = 0
    entries: list[Stored] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.first + len(self.entries)


class FakeBroker:
    """One master. `fail_next`: response codes for the next sends; `mute`: codes that get no answer."""

    def __init__(self, cluster: "FakeCluster", name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.port = 0
        self.queues: dict[tuple[str, int], FakeQueue] = {}
        self.offsets: dict[tuple[str, str, int], int] = {}
        self.fail_next: list[int] = []
        self.mute: set[int] = set()
        self.seen: list[Command] = []
        self.pull_max = 1024
        self.pull_bytes_max = 4 << 20
        self.waiting: list[tuple[Command, asyncio.Transport]] = []
        self.physical = 0
        self.beats: list[dict[str, object]] = []
        self.ended: list[Command] = []
        self.delay_s = 0.0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def append(self, topic: str, queue_id: int, body: bytes, properties: bytes = b"", **more: object) -> int:
        queue = self.queues.setdefault((topic, queue_id), FakeQueue())
        offset = queue.end
        more = {"store_ms": time.time_ns() // 1_000_000, "store_host": host_bytes(self.port), **more}
        record = make_record(topic, queue_id, offset, body, properties, physical=self.physical, **more)
        tag = props.find(properties, props.TAGS)
        queue.entries.append(Stored(offset, java_hash(tag) if tag else 0, record, more["store_ms"]))
        self.physical += len(record)
        return offset

    def expire(self, topic: str, queue_id: int, first: int) -> None:
        queue = self.queues[topic, queue_id]
        del queue.entries[: first - queue.first]
        queue.first = first

    def handle(self, command: Command, transport: asyncio.Transport) -> None:
        self.seen.append(command)
        if command.code in self.mute:
            return
        known = command.code in RequestCode._value2member_map_
        method = getattr(self, "on_" + RequestCode(command.code).name.lower(), None) if known else None
        if method is None:
            transport.write(response(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "not here"))
            return
        answer = method(command, transport)
        if answer is not None and not command.is_oneway:
            asyncio.get_running_loop().call_later(self.delay_s, transport.write, answer)

    def on_send_message_v2(self, command: Command, transport: asyncio.Transport) -> bytes:
        fields = command.fields
        if self.fail_next:
            return response(command, self.fail_next.pop(0), "told to fail")
        queue_id = int(fields["e"])
        self.cluster.topics.setdefault(fields["b"], {self.name: 4})
        physical = self.physical
        offset = self.append(fields["b"], queue_id, command.body, fields["i"].encode(), born_ms=int(fields["g"]))
        message_id = (host_bytes(self.port) + physical.to_bytes(8, "big")).hex().upper()
        self.wake()
        return response(command, 0, None, {"msgId": message_id, "queueId": str(queue_id), "queueOffset": str(offset)})

    def on_send_batch_message(self, command: Command, transport: asyncio.Transport) -> bytes:
        """All items of the body one by one; one answer."""
        if self.fail_next:
            return response(command, self.fail_next.pop(0), "told to fail")
        fields, body, at, offsets = command.fields, command.body, 0, []
        self.cluster.topics.setdefault(fields["b"], {self.name: 4})
        while at < len(body):
            size, _, _, _, length = struct.unpack_from(">IIIiI", body, at)
            text = body[at + 20 + length + 2 : at + size]
            data = body[at + 20 : at + 20 + length]
            offsets.append(self.append(fields["b"], int(fields["e"]), data, text, born_ms=int(fields["g"])))
            at += size
        self.wake()
        return response(command, 0, None, {"msgId": "", "queueId": fields["e"], "queueOffset": str(offsets[0])})

    def wake(self) -> None:
        waiting, self.waiting = self.waiting, []
        for command, transport in waiting:
            answer = self.on_pull_message(command, transport)
            if answer is not None:
                transport.write(answer)

    def on_pull_message(self, command: Command, transport: asyncio.Transport) -> bytes | None:
        fields = command.fields
        queue = self.queues.setdefault((fields["topic"], int(fields["queueId"])), FakeQueue())
        offset, count = int(fields["queueOffset"]), min(int(fields["maxMsgNums"]), self.pull_max)
        tags = fields["subscription"]
        wanted = None if tags == "*" else {java_hash(tag.strip()) for tag in tags.split("||")}
        out = {
            "suggestWhichBrokerId": "0",
            "minOffset": str(queue.first),
            "maxOffset": str(queue.end),
        }
        if not queue.first <= offset <= queue.end:
            out["nextBeginOffset"] = str(queue.first if offset < queue.first else queue.end)
            return response(command, ResponseCode.PULL_OFFSET_MOVED, None, out)
        chosen, size, position = [], 0, offset
        for entry in queue.entries[offset - queue.first :]:
            if len(chosen) >= count or (chosen and size + len(entry.record) > self.pull_bytes_max):
                break
            position = entry.offset + 1
            if wanted is None or entry.tag_hash in wanted:
                chosen.append(entry.record)
                size += len(entry.record)
        out["nextBeginOffset"] = str(position)
        if chosen:
            return response(command, 0, "FOUND", out, b"".join(chosen))
        if position > offset:
            return response(command, ResponseCode.PULL_RETRY_IMMEDIATELY, None, out)
        if int(fields["sysFlag"]) & 2:
            self.waiting.append((command, transport))
            wait_s = int(fields["suspendTimeoutMillis"]) / 1000
            asyncio.get_running_loop().call_later(wait_s, self.give_up, command, transport, out)
            return None
        return response(command, ResponseCode.PULL_NOT_FOUND, None, out)

    def give_up(self, command: Command, transport: asyncio.Transport, out: dict[str, str]) -> None:
        if (command, transport) in self.waiting:
            self.waiting.remove((command, transport))
            transport.write(response(command, ResponseCode.PULL_NOT_FOUND, None, out))

    def on_heart_beat(self, command: Command, transport: asyncio.Transport) -> bytes:
        self.beats.append(msgspec.json.decode(command.body))
        return response(command)

    def on_unregister_client(self, command: Command, transport: asyncio.Transport) -> bytes:
        return response(command)

    def on_end_transaction(self, command: Command, transport: asyncio.Transport) -> bytes:
        self.ended.append(command)
        return response(command)

    def on_get_max_offset(self, command: Command, transport: asyncio.Transport) -> bytes:
        return self._offset(command, lambda queue: queue.end)

    def on_get_min_offset(self, command: Command, transport: asyncio.Transport) -> bytes:
        return self._offset(command, lambda queue: queue.first)

    def on_search_offset_by_timestamp(self, command: Command, transport: asyncio.Transport) -> bytes:
        at = int(command.fields["timestamp"])
        return self._offset(
            command, lambda queue: next((e.offset for e in queue.entries if e.store_ms >= at), queue.end)
        )

    def _offset(self, command: Command, find: object) -> bytes:
        key = command.fields["topic"], int(command.fields["queueId"])
        return response(command, 0, None, {"offset": str(find(self.queues.get(key, FakeQueue())))})

    def on_query_consumer_offset(self, command: Command, transport: asyncio.Transport) -> bytes:
        fields = command.fields
        offset = self.offsets.get((fields["consumerGroup"], fields["topic"], int(fields["queueId"])))
        if offset is None:
            return response(command, ResponseCode.QUERY_NOT_FOUND, "no offset")
        return response(command, 0, None, {"offset": str(offset)})

    def on_update_consumer_offset(self, command: Command, transport: asyncio.Transport) -> bytes:
        fields = command.fields
        self.offsets[fields["consumerGroup"], fields["topic"], int(fields["queueId"])] = int(fields["commitOffset"])
        return response(command)

    def on_update_and_create_topic(self, command: Command, transport: asyncio.Transport) -> bytes:
        fields = command.fields
        self.cluster.topics.setdefault(fields["topic"], {})[self.name] = int(fields["writeQueueNums"])
        return response(command)

    def on_delete_topic_in_broker(self, command: Command, transport: asyncio.Transport) -> bytes:
        self.cluster.topics.get(command.fields["topic"], {}).pop(self.name, None)
        return response(command)

    def on_query_message(self, command: Command, transport: asyncio.Transport) -> bytes:
        fields = command.fields
        unique = fields.get("_UNIQUE_KEY_QUERY") == "true"
        found = []
        for (topic, _), queue in self.queues.items():
            for entry in queue.entries if topic == fields["topic"] else ():
                text = entry.record.decode("latin-1")
                wanted = "UNIQ_KEY\x01" + fields["key"] if unique else fields["key"]
                if wanted in text:  # as loose as an index of hashes
                    found.append(entry.record)
        if not found:
            return response(command, ResponseCode.QUERY_NOT_FOUND, "no message")
        return response(command, 0, None, {}, b"".join(found))

    def on_view_message_by_id(self, command: Command, transport: asyncio.Transport) -> bytes:
        for queue in self.queues.values():
            for entry in queue.entries:
                if struct.unpack_from(">q", entry.record, 28)[0] == int(command.fields["offset"]):
                    return response(command, 0, None, {}, entry.record)
        return response(command, ResponseCode.SYSTEM_ERROR, "can not find message")


class _Door(asyncio.Protocol):
    def __init__(self, server: object, doors: set["_Door"]) -> None:
        self.server = server
        self.doors = doors
        self.reader = FrameReader()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.doors.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self.doors.discard(self)

    def data_received(self, data: bytes) -> None:
        for command in self.reader.feed(data):
            self.server.handle(command, self.transport)


class FakeCluster:
    """Nameserver and brokers. `topics`: topic to {broker name: number of queues}."""

    def __init__(self, brokers: int = 1) -> None:
        self.topics: dict[str, dict[str, int]] = {}
        self.auto_create = True
        self.brokers = {f"broker-{chr(97 + n)}": FakeBroker(self, f"broker-{chr(97 + n)}") for n in range(brokers)}
        self.thread = LoopThread()
        self.servers: dict[str, asyncio.Server] = {}
        self.doors: dict[str, set[_Door]] = {}
        self.asked: list[Command] = []
        self.port = 0
        self.start_nameserver()
        for name in self.brokers:
            self.start_broker(name)

    @property
    def nameserver(self) -> str:
        return f"127.0.0.1:{self.port}"

    def broker(self, name: str = "broker-a") -> FakeBroker:
        return self.brokers[name]

    def start_nameserver(self) -> None:
        self.port = self.thread.run(self._start("ns", self, self.port))

    def start_broker(self, name: str) -> None:
        broker = self.brokers[name]
        broker.port = self.thread.run(self._start(name, broker, broker.port))

    def stop(self, name: str) -> None:
        """Stop listening and drop every connection of `ns` or a broker."""
        self.thread.run(self._stop(name))

    def drop_connections(self, name: str) -> None:
        async def drop() -> None:
            for door in list(self.doors[name]):
                door.transport.abort()

        self.thread.run(drop())

    def close(self) -> None:
        for name in list(self.servers):
            self.stop(name)
        self.thread.stop()

    def push(self, name: str, command: Command) -> None:
        """Send a broker's request to every client of it."""

        async def send() -> None:
            for door in list(self.doors[name]):
                door.transport.write(encode(command))

        self.thread.run(send())

    async def _start(self, name: str, server: object, port: int) -> int:
        loop = asyncio.get_running_loop()
        doors = self.doors[name] = set()
        self.servers[name] = await loop.create_server(lambda: _Door(server, doors), "127.0.0.1", port)
        return self.servers[name].sockets[0].getsockname()[1]

    async def _stop(self, name: str) -> None:
        server = self.servers.pop(name)
        server.close()
        for door in list(self.doors[name]):
            door.transport.abort()
        await server.wait_closed()
        await asyncio.sleep(0)

    def handle(self, command: Command, transport: asyncio.Transport) -> None:
        self.asked.append(command)
        transport.write(self._answer(command))

    def _answer(self, command: Command) -> bytes:
        match command.code:
            case RequestCode.GET_ROUTEINFO_BY_TOPIC:
                topic = command.fields["topic"]
                queues = self.topics.get(topic)
                if topic == "TBW102" and self.auto_create:
                    queues = dict.fromkeys(self.brokers, 8)
                if not queues:
                    return response(command, ResponseCode.TOPIC_NOT_EXIST, "No topic route info in name server")
                body = {
                    "queueDatas": [
                        {"brokerName": name, "readQueueNums": count, "writeQueueNums": count, "perm": 6}
                        for name, count in queues.items()
                    ],
                    "brokerDatas": [self._broker_data(name) for name in queues],
                }
                return response(command, 0, None, {}, msgspec.json.encode(body))
            case RequestCode.GET_BROKER_CLUSTER_INFO:  # with fastjson's unquoted numeric keys
                brokers = ",".join(
                    f'"{name}":{{"brokerAddrs":{{0:"{broker.address}"}},"brokerName":"{name}","cluster":"C"}}'
                    for name, broker in self.brokers.items()
                )
                names = msgspec.json.encode(sorted(self.brokers)).decode()
                body = f'{{"brokerAddrTable":{{{brokers}}},"clusterAddrTable":{{"C":{names}}}}}'
                return response(command, 0, None, {}, body.encode())
            case RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER:
                names = [*self.topics, "TBW102", "C", *self.brokers, "rmq_sys_gantry_x"]
                return response(command, 0, None, {}, msgspec.json.encode({"topicList": names}))
            case RequestCode.DELETE_TOPIC_IN_NAMESRV:
                self.topics.pop(command.fields["topic"], None)
                return response(command)
        return response(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "not here")

    def _broker_data(self, name: str) -> dict[str, object]:
        return {"brokerName": name, "cluster": "C", "brokerAddrs": {"0": self.brokers[name].address}}
