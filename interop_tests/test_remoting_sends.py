"""Ways of sending, retries, dead letters, request and reply, light queues: RocketMQ's own clients of the 4.9 and the 5.3 line against us,
and the same program against a real broker: both must see the same."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gantrymq.client.admin import Admin
from interop_tests.java import official
from interop_tests.real_broker import RealBroker, all_of
from interop_tests.running import Gantry
from interop_tests.test_remoting_foreign import node_project
from interop_tests.waiting import LIMIT_S, until

pytestmark = [pytest.mark.slow]
needs_java = pytest.mark.skipif(bool(official.missing()), reason=official.missing())

ACCEPTED = {
    # A queue's own place in a record: the real broker's offsets of light queues count from its own start.
    "light": re.compile(r"offsets .*"),
}
"""Differences by kind of line, cut out before comparing."""


def of_kind(lines: list[str], *kinds: str) -> list[str]:
    return [line for line in lines if line.split()[0] in kinds]


async def make_topic(nameserver: str, name: str) -> None:
    async with Admin(nameserver) as admin:
        await admin.create_topic(name, 1)


WANTED_RETRY = [
    "retry vain of -retry times 0 tag red keys k1 own x retry null delay null wait true origin false id true",
    "retry vain of -retry times 1 tag red keys k1 own x retry -retry delay 1 wait false origin true id true",
    "retry-dead vain of %DLQ%-retry-group times 2 tag red keys k1 own x retry -retry delay 0 wait false origin true id true",
]


@needs_java
@pytest.mark.java
@pytest.mark.parametrize(("version", "header"), [("4.9.8", "JSON"), ("5.3.3", "ROCKETMQ")])
def test_java(own_server: Gantry, tmp_path: Path, version: str, header: str) -> None:
    """`header`: how the client writes its requests; 5.3.3 with JSON is compared with the real broker below."""
    arguments = (own_server.doors["nameserver"], "s" + version[0])
    lines = official.printed("Sends", tmp_path, *arguments, version=version, header=header)
    assert of_kind(lines, "retry", "retry-dead") == WANTED_RETRY
    times = {"4.9.8": 1, "5.3.3": 2}[version]  # how the client itself counts
    assert of_kind(lines, "ordered-dead") == [
        f"ordered-dead vain of %DLQ%-ordered-group times {times} tag red keys k2 own null retry -ordered delay -1 wait true "
        "origin true id true"
    ]
    assert of_kind(lines, "reply", "no") == [f"reply re: question {i} type reply" for i in range(10)]
    assert of_kind(lines, "batch") == [f"batch b{i} t{i} k{i} at {i}" for i in range(5)]
    kinds = ("ZLIB",) if version == "4.9.8" else ("LZ4", "ZLIB", "ZSTD")
    assert of_kind(lines, "compressed") == [f"compressed {kind} true true" for kind in kinds]
    assert of_kind(lines, "light") == [
        "light A l0 of -light offsets 0,0", "light A l2 of -light offsets 1,2", "light B l0 of -light offsets 0,0",
        "light B l1 of -light offsets 1", "light B l2 of -light offsets 1,2", "light B l3 of -light offsets 3",
    ]  # fmt: skip


@needs_java
@pytest.mark.java
def test_the_real_broker_shows_the_same(own_server: Gantry, tmp_path: Path) -> None:
    official.needed(official.peer_jars)
    peer = RealBroker(tmp_path / "peer")
    (tmp_path / "peer").mkdir()
    with ThreadPoolExecutor(2) as together:  # most of their time is the client's waiting
        try:
            running = together.submit(official.printed, "Sends", tmp_path, own_server.doors["nameserver"], "same")
            theirs = official.printed("Sends", tmp_path, peer.start().address, "same")
            ours = running.result()
        finally:
            peer.kill()
    for kind, pattern in ACCEPTED.items():
        theirs = [pattern.sub("", line) if line.startswith(kind) else line for line in theirs]
        ours = [pattern.sub("", line) if line.startswith(kind) else line for line in ours]
    assert ours == theirs


def test_ali_ons_consumes_in_vain(tmp_path: Path) -> None:
    project = node_project(tmp_path)
    server = Gantry(tmp_path, settings=("timer.delay_levels=1s 1s 1s 1s",)).start()
    try:
        asyncio.run(make_topic(server.doors["nameserver"], "vain"))
        words = ["node", "retry.js", server.doors["nameserver"], "vain"]
        with subprocess.Popen(words, cwd=project, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as node:
            assert node.stdout is not None
            assert json.loads(node.stdout.readline()) == [["vain", 0, False], ["vain", 1, True]]
            until(lambda: b"vain" in asyncio.run(all_of(server.doors["nameserver"], "%DLQ%node_retry"))[0].values())
            node.communicate("", timeout=LIMIT_S)
        assert node.returncode == 0
    finally:
        server.stop()
