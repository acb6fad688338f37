"""The dispatch table: each request code has one row; a family's handlers are given its services; late answers to a connection that is gone."""

from __future__ import annotations

from pathlib import Path

from gantrymq.remoting.codec import Command
from gantrymq.remoting.constants import RequestCode
from gantrymq.remoting.dispatch import rows
from gantrymq.remoting.request_classes import RequestClass
from tests.remoting.bench import Bench, ask


def test_a_row_has_all_that_is_known_of_its_code() -> None:
    def handle(command: Command, reply: list[str], services: str) -> None:
        reply.append(services)

    rights = {RequestCode.DELETE_TOPIC_IN_BROKER: lambda command: [("delete", f"topic:{command.fields['topic']}")]}
    table = rows({RequestCode.DELETE_TOPIC_IN_BROKER: handle, RequestCode.PULL_MESSAGE: handle}, "services", rights)
    deletes, pulls = table[RequestCode.DELETE_TOPIC_IN_BROKER], table[RequestCode.PULL_MESSAGE]
    assert (deletes.kind, pulls.kind) == (RequestClass.ADMINISTRATION, RequestClass.CLIENT)
    assert deletes.right is not None
    assert deletes.right(Command(215, {"topic": "T"})) == [("delete", "topic:T")]
    assert pulls.right is None
    heard: list[str] = []
    pulls.handler(Command(11), heard, pulls.services)
    assert heard == ["services"]


def test_handlers_are_given_what_their_row_says(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    row = bench.doors.table[RequestCode.GET_MAX_OFFSET]
    seen = []

    def handle(command: Command, reply: object, services: object) -> None:
        seen.append((reply, services))
        row.handler(command, reply, services)

    bench.doors.table[RequestCode.GET_MAX_OFFSET] = row._replace(handler=handle)
    link = bench.connect()
    ask(link, RequestCode.GET_MAX_OFFSET, topic="T", queueId=0)
    assert seen == [(link.door, row.services)]
    bench.close()


def test_an_answer_to_a_connection_that_is_gone_is_dropped(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    link = bench.connect()
    door = link.door
    link.close()
    bench.turn.run_until_quiet()
    door.closed("test")
    door.respond(Command(RequestCode.GET_MAX_OFFSET))
    assert door.data_to_send() == b""
    bench.close()
