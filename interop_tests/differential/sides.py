"""Plays the script to one broker, and says what came back in a form that two brokers have in common."""

from __future__ import annotations

import re
import select
import socket
import time
from contextlib import suppress
from typing import Any

from gantrymq.model import properties
from gantrymq.model.dialect import DialectError, read_json
from gantrymq.remoting.codec import Command, FrameReader, encode
from gantrymq.store.log import record
from interop_tests.differential.steps import NAMESERVER, Step
from interop_tests.waiting import until

ANSWER_S = 60.0
SETTLES_S = 90.0
NOTICES = (40, 39, 307)
"""Requests of a broker that come when they like: changed members, transactions to check, what a client subscribes to."""

_MS = re.compile(r"(?<![0-9A-F])1[6-9]\d{11}(?![0-9A-F])")
_ID = re.compile(r"[0-9A-F]{32,56}")
NO_REMARK = "not set any response code"
"""What a Java answer says whose handler said nothing."""
POSITIONS = ("indexLastUpdatePhyoffset",)
"""Fields that depend on everything before."""
ONE_WAY = 2


class Connection:
    """One socket to a broker or nameserver."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._sock = socket.create_connection((host, int(port)), ANSWER_S)
        self._sock.settimeout(ANSWER_S)
        self._reader = FrameReader()
        self._opaque = 0
        self._answers: dict[int, Command] = {}
        self._pushed: list[Command] = []

    def post(self, code: int, fields: dict[str, str], body: bytes, binary: bool, one_way: bool) -> int:
        """Send a request; its opaque."""
        self._opaque += 1
        self._sock.sendall(
            encode(Command(code, fields, body, self._opaque, ONE_WAY if one_way else 0, language=0), binary)
        )
        return self._opaque

    def answer(self, opaque: int) -> Command:
        """The answer to that request."""
        while opaque not in self._answers:
            self._read()
        return self._answers.pop(opaque)

    def pushed(self) -> Command:
        """The next request of the server that is no notice; answered, if somebody waits for that."""
        while not self._pushed:
            self._read()
        command = self._pushed.pop(0)
        if not command.flag & ONE_WAY:
            self._sock.sendall(encode(Command(0, {}, b"", command.opaque, 1, language=0)))
        return command

    def wait_or_take(self, other: Connection) -> None:
        """Until an answer is here, or a request of the server on another connection, which is answered."""
        ready, _, _ = select.select([self._sock, other._sock], [], [], ANSWER_S)
        if other._sock in ready:
            other.pushed()

    def _read(self) -> None:
        data = self._sock.recv(1 << 20)
        if not data:
            raise ConnectionError("closed")
        for command in self._reader.feed(data):
            if command.is_response:
                self._answers[command.opaque] = command
            elif command.code not in NOTICES:
                self._pushed.append(command)

    def close(self) -> None:
        self._sock.close()


class Side:
    """One of the two installations."""

    def __init__(self, nameserver: str, broker: str, prefix: str) -> None:
        self._addresses = {NAMESERVER: nameserver}
        self._broker = broker
        self._prefix = prefix
        self._values = {"p": prefix}
        self._connections: dict[str, Connection] = {}

    def connection(self, name: str) -> Connection:
        if name not in self._connections:
            self._connections[name] = Connection(self._addresses.get(name, self._broker))
        return self._connections[name]

    def play(self, step: Step) -> dict[str, Any]:
        """What the step showed: code, remark, fields, body, pushed."""
        self._values["now"] = str(int(time.time() * 1000))
        fields = {name: self._filled(str(value)) for name, value in step.fields.items() if value is not None}
        body = re.sub(rb"\{p\}", self._prefix.encode(), step.body)

        here = self.connection(step.on)

        def post() -> int:
            return here.post(step.code, fields, body, step.binary, step.one_way)

        opaque = post()
        if step.one_way:
            return {}
        pushed = self.connection(step.pushed_on).pushed() if step.pushed_on else None
        if step.may_push_on:
            here.wait_or_take(self.connection(step.may_push_on))
        last = [here.answer(opaque)]

        def settles() -> bool:
            found = last[0]
            if all(
                (str(found.code) if name == "code" else found.fields.get(name)) == wanted
                for name, wanted in step.until.items()
            ):
                return True
            last[0] = here.answer(post())
            return False

        with suppress(AssertionError):  # what never came is shown by the comparison
            until(settles, SETTLES_S)
        answer = last[0]
        for name, source in step.keep.items():
            self._values[name] = (
                str(int(answer.fields["msgId"][-16:], 16)) if source == "physical" else answer.fields.get(source, "")
            )
        shown = self._shown(answer)
        if pushed is not None:
            shown["pushed"] = self._shown(pushed) | {"one way": bool(pushed.flag & ONE_WAY)}
        return shown

    def _filled(self, text: str) -> str:
        return re.sub(r"\{(\w+)\}", lambda match: self._values.get(match[1], match[0]), text)

    def _shown(self, command: Command) -> dict[str, Any]:
        return {
            "code": command.code,
            "remark": "none" if command.remark in (None, "", NO_REMARK) else "text",
            "fields": {name: self._field(name, value) for name, value in sorted(command.fields.items()) if value},
            "body": self._body(command.body),
            "said": command.remark,
        }

    def _field(self, name: str, value: str) -> Any:
        if name == "properties":
            return {key: self._masked(each) for key, each in properties.decode(value.encode()).items()}
        return "<position>" if name in POSITIONS else self._masked(value)

    def _masked(self, text: str) -> str:
        text = (
            text.replace(self._prefix, "")
            .replace(self._broker, "<broker>")
            .replace(self._addresses[NAMESERVER], "<nameserver>")
        )
        text = re.sub(r"127\.0\.0\.1:\d+", "<client>", text)
        return _MS.sub("<ms>", _ID.sub("<id>", text))

    def _body(self, body: bytes) -> Any:
        if not body:
            return None
        if body[4:8] in (record.MAGIC_BYTES_V1, record.MAGIC_BYTES_V2):
            return self._records(body)
        try:
            return self._tree(read_json(body))
        except (DialectError, ValueError):
            return self._masked(body.decode(errors="replace"))

    def _records(self, body: bytes) -> list[dict[str, Any]]:
        found, at = [], 0
        while at < len(body):
            message = record.decode(body, at)
            pairs = {name: self._masked(value) for name, value in properties.decode(message.properties).items()}
            found.append({
                "topic": self._masked(message.topic), "queue": message.queue_id, "offset": message.queue_offset, "flag": message.flag,
                "sysFlag": message.sys_flag, "born": message.born_ms == 1_700_000_000_000, "times": message.reconsume_times,
                "body": message.body.decode(), "properties": pairs, "prepared": message.prepared_offset > 0,
            })  # fmt: skip
            at += int.from_bytes(body[at : at + 4], "big")
        return found

    def _tree(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {self._masked(str(name)): self._tree(item) for name, item in value.items() if item is not None}
        if isinstance(value, list):
            return sorted((self._tree(item) for item in value), key=repr)
        if isinstance(value, str) or (isinstance(value, int) and value > 10**12):
            return self._masked(str(value))
        return value

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()


def differences(theirs: dict[str, Any], ours: dict[str, Any], where: str = "") -> list[tuple[str, Any, Any]]:
    """(place, theirs, ours) of everything that differs; `said` is not compared."""
    found: list[tuple[str, Any, Any]] = []
    for name in sorted({*theirs, *ours}, key=str):
        one, other = theirs.get(name, "<absent>"), ours.get(name, "<absent>")
        place = f"{where}{name}"
        if name == "said" or one == other:
            continue
        if isinstance(one, dict) and isinstance(other, dict):
            found += differences(one, other, f"{place}.")
        elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
            found += differences(_numbered(one), _numbered(other), f"{place}.")
        else:
            found.append((place, one, other))
    return found


def _numbered(items: list[Any]) -> dict[str, Any]:
    return {str(index): item for index, item in enumerate(items)}
