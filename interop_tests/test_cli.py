"""The command line for people, metrics and health against real servers, and `gantry top` in a pseudo-terminal."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gantrymq.cli.app import run_app
from gantrymq.client import OutMessage, Producer, PullConsumer, PushConsumer
from gantrymq.client.admin import Admin
from gantrymq.client.connecting import routes
from gantrymq.client.tools import overview
from gantrymq.remoting.codec import Command
from gantrymq.remoting.constants import RequestCode
from interop_tests.running import Cluster, Gantry, Process
from interop_tests.waiting import LIMIT_S, until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gantry]:
    made = Gantry(tmp_path_factory.mktemp("cli"), settings=("server.log_format=json",))
    try:
        yield made.start()
    finally:
        made.stop()


@pytest.fixture
def gantry(server: Gantry, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Runner:
    return Runner(server.doors["nameserver"], monkeypatch, capsys)


class Runner:
    """Commands in this process; `run` gives the exit code, what was printed, and the complaint."""

    def __init__(self, nameserver: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.nameserver = nameserver
        self.capsys = capsys
        monkeypatch.setenv("NAMESRV_ADDR", nameserver)
        monkeypatch.setenv("COLUMNS", "100")

    def run(self, *words: str) -> tuple[int, str, str]:
        self.capsys.readouterr()
        code = run_app(list(words))
        out, err = self.capsys.readouterr()
        return code, out, err

    def ok(self, *words: str) -> str:
        code, out, err = self.run(*words)
        assert (code, err) == (0, "")
        return out

    def rows(self, *words: str) -> list[dict]:
        return [json.loads(line) for line in self.ok(*words, "--json").splitlines()]


def send(nameserver: str, topic: str, count: int) -> None:
    async def main() -> None:
        async with Producer(nameserver) as producer:
            await producer.send_many([OutMessage(topic, b"%d" % number, tag="a", keys="k") for number in range(count)])

    asyncio.run(main())


def consume(nameserver: str, topic: str, group: str) -> list:
    async def main() -> list:
        async with PullConsumer(nameserver, group=group) as consumer:
            ends = {queue: await consumer.max_offset(queue) for queue in await consumer.assign(topic)}
            found = []
            while any(consumer.position(queue) < end for queue, end in ends.items()):
                found += await consumer.pull(1_000, 1.0)
            await consumer.commit()
            return found

    return asyncio.run(main())


def pushed(nameserver: str, topic: str, group: str) -> list:
    """The first message that a push consumer of the group gets."""

    async def main() -> list:
        found: list = []
        came = asyncio.Event()

        async def handle(message) -> None:
            found.append((message.topic, message.body, message.tag, message.property("colour")))
            came.set()

        consumer = PushConsumer(nameserver, group=group, start="earliest")
        consumer.subscribe(topic, handle)
        async with consumer:
            await asyncio.wait_for(came.wait(), LIMIT_S)
        return found

    return asyncio.run(main())


# Commands.


def test_topics(gantry: Runner) -> None:
    assert "4 queues" in gantry.ok("topic", "create", "orders", "--attribute", "flush=async")
    (show,) = gantry.rows("topic", "show", "orders")
    assert show["brokers"][0]["attributes"] == {"flush": "async"}
    gantry.ok("topic", "update", "orders", "--read-queues", "6", "--perm", "r", "--attribute", "flush=")

    def route() -> tuple[int, int, str]:
        (row,) = gantry.rows("topic", "route", "orders")
        return row["read_queues"], row["write_queues"], row["perm"]

    until(lambda: route() == (6, 4, "r"))  # the broker tells the nameserver a moment later
    (show,) = gantry.rows("topic", "show", "orders")
    assert show["brokers"][0]["attributes"] == {}
    gantry.ok("topic", "update", "orders", "--perm", "rw")
    until(lambda: route() == (6, 4, "rw"))
    send(gantry.nameserver, "orders", 10)
    (row,) = [row for row in gantry.rows("topic", "list") if row["topic"] == "orders"]
    assert row["messages"] == 10
    assert "orders" in gantry.ok("topic", "list", "--names").splitlines()
    (stats,) = gantry.rows("topic", "stats", "orders")
    assert stats["messages"] == 10
    assert len(stats["queues"]) == 6
    for words in (
        ("topic", "show", "orders"),
        ("topic", "route", "orders"),
        ("topic", "stats", "orders"),
        ("topic", "list"),
    ):
        assert "orders" in gantry.ok(*words)
    code, _, err = gantry.run("topic", "delete", "orders")
    assert code == 2
    assert "--yes" in err  # nobody to ask
    gantry.ok("topic", "delete", "orders", "--yes")
    assert gantry.run("topic", "show", "orders")[0] == 3


def test_groups_and_offsets(gantry: Runner) -> None:
    gantry.ok("topic", "create", "bills")
    send(gantry.nameserver, "bills", 8)
    assert len(consume(gantry.nameserver, "bills", "readers")) == 8
    send(gantry.nameserver, "bills", 5)
    (row,) = [row for row in gantry.rows("group", "list") if row["group"] == "readers"]
    assert (row["lag"], row["topics"]) == (5, ["bills"])
    (show,) = gantry.rows("group", "show", "readers")
    assert show["lag"] == sum(queue["lag"] for queue in show["queues"]) == 5
    assert "nobody is connected" in gantry.ok("group", "show", "readers")
    assert "nobody of group" in gantry.ok("group", "connections", "readers")
    gantry.ok("offset", "reset", "readers", "--topic", "bills", "--to", "earliest", "--yes")
    assert sum(row["lag"] for row in gantry.rows("offset", "show", "readers")) == 13
    gantry.ok("offset", "reset", "readers", "--topic", "bills", "--to", "latest", "--yes")
    gantry.ok("offset", "clone", "readers", "copies")
    assert sum(row["lag"] for row in gantry.rows("offset", "show", "copies")) == 0
    assert gantry.run("offset", "clone", "nobody", "copies")[0] == 3
    assert (
        gantry.run("offset", "reset", "readers", "--topic", "bills", "--to", "soon")[0] == 2
    )  # before anybody is asked
    assert gantry.run("offset", "clone", "readers", "readers")[0] == 2
    code, _, err = gantry.run("offset", "reset", "raeders", "--topic", "bills", "--to", "earliest", "--yes")
    assert (code, "there is no group 'raeders'; did you mean 'readers'?" in err) == (3, True)
    assert gantry.run("group", "show", "raeders")[0] == 3, "nothing was made"
    gantry.ok("offset", "reset", "fresh", "--topic", "bills", "--to", "earliest", "--new", "--yes")
    assert len(consume(gantry.nameserver, "bills", "fresh")) == 13
    gantry.ok("group", "create", "made", "--retries", "3")
    gantry.ok("group", "update", "made", "--no-consume")
    (made,) = gantry.rows("group", "show", "made")
    (config,) = made["configs"].values()
    assert (config["retryMaxTimes"], config["consumeEnable"]) == (3, False)
    gantry.ok("group", "delete", "made", "--yes")
    assert gantry.run("group", "show", "made")[0] == 3
    assert gantry.run("group", "delete", "made", "--yes")[0] == 3
    assert gantry.run("group", "update", "made", "--retries", "1")[0] == 3


def test_members_and_their_conflict(gantry: Runner) -> None:
    gantry.ok("topic", "create", "mixed")

    async def main() -> dict:
        async with (
            PullConsumer(gantry.nameserver, group="quarrel") as one,
            PullConsumer(gantry.nameserver, group="quarrel") as two,
        ):
            await one.subscribe("mixed", tags="a")
            await two.subscribe("mixed", tags="b")
            return await asyncio.to_thread(subprocess_rows, gantry, "group", "show", "quarrel")

    show = asyncio.run(main())
    assert {each["subscriptions"]["mixed"] for each in show["clients"]} == {"a", "b"}
    assert set(show["conflicts"]["mixed"]) == {"a", "b"}


def subprocess_rows(gantry: Runner, *words: str) -> dict:
    done = subprocess.run(
        [sys.executable, "-m", "gantrymq", *words, "--json"], capture_output=True, text=True, timeout=LIMIT_S, check=True,
        env={**os.environ, "NAMESRV_ADDR": gantry.nameserver},
    )  # fmt: skip
    return json.loads(done.stdout)


def test_messages_and_dead_letters(gantry: Runner) -> None:
    gantry.ok("topic", "create", "mail", "--queues", "1")
    gantry.ok("message", "send", "mail", "hello", "--key", "k1", "--tag", "t", "--property", "colour=red")
    (row,) = gantry.rows("message", "query", "--topic", "mail", "--key", "k1")
    assert row["body"] == "hello"
    (same,) = gantry.rows("message", "get", row["message_id"], "--topic", "mail")
    (placed,) = gantry.rows("message", "get", "--topic", "mail", "--at", f"{row['broker']}/0/0")
    assert same["offset_message_id"] == placed["offset_message_id"] == row["offset_message_id"]
    assert gantry.run("message", "get", "--topic", "mail", "--at", f"{row['broker']}/0/9")[0] == 3
    assert "hello" in gantry.ok("message", "tail", "mail", "--no-follow")
    assert gantry.run("message", "redrive", "postmen", "--yes")[0] == 3
    (message,) = consume(gantry.nameserver, "mail", "postmen")

    async def give_up() -> None:
        async with Admin(gantry.nameserver) as admin:
            fields = {
                "offset": str(message.physical_offset), "group": "postmen", "delayLevel": "-1", "originMsgId": message.message_id,
                "originTopic": "mail", "maxReconsumeTimes": "0",
            }  # fmt: skip
            (address,) = (await admin.cluster()).masters().values()
            await admin.client.ask(address, Command(RequestCode.CONSUMER_SEND_MSG_BACK, fields), "send back")

    asyncio.run(give_up())
    until(lambda: gantry.run("topic", "show", "%DLQ%postmen")[0] == 0)
    assert "1 dead letter would be sent to mail" in gantry.ok("message", "redrive", "postmen", "--dry-run")
    assert "1 dead letter sent to mail" in gantry.ok("message", "redrive", "postmen", "--yes")
    again = consume(gantry.nameserver, "mail", "postmen")
    assert [(each.body, each.tag, each.keys, each.property("colour")) for each in again] == [
        (b"hello", "t", "k1", "red")
    ]
    assert "no dead letters that were not sent again" in gantry.ok("message", "redrive", "postmen", "--yes")
    assert "1 dead letter" in gantry.ok("message", "redrive", "postmen", "--yes", "--again")
    # To one group alone: nobody else's topic has more, and its own consumers see the topic that it came from.
    assert gantry.run("message", "redrive", "postmen", "--only", "--to", "mail", "--yes")[0] == 2
    others = consume(gantry.nameserver, "mail", "neighbours")
    consume(gantry.nameserver, "mail", "postmen")
    assert "1 dead letter sent to %RETRY%postmen" in gantry.ok(
        "message", "redrive", "postmen", "--again", "--only", "--yes"
    )
    assert len(others) == len(consume(gantry.nameserver, "mail", "strangers"))
    assert pushed(gantry.nameserver, "mail", "postmen") == [("mail", b"hello", "t", "red")]
    # Those that fail again meanwhile are left for the next redrive: here all of them do at once.
    to = ("--to", "%DLQ%postmen", "--max", "50", "--yes")
    assert "1 dead letter sent" in gantry.ok("message", "redrive", "postmen", "--again", *to)
    assert "1 dead letter sent" in gantry.ok("message", "redrive", "postmen", *to)
    assert "3 dead letters would be" in gantry.ok(
        "message", "redrive", "postmen", "--dry-run", "--again", "--to", "mail"
    )


def test_trace(gantry: Runner) -> None:
    assert gantry.run("trace", "ID9", "--topic", "traces")[0] == 3
    record = ["Pub", "1700000000000", "r", "producers", "mail", "ID9", "t", "k1", "h", "5", "12", "0", "o", "true"]

    async def main() -> None:
        async with Producer(gantry.nameserver) as producer:
            await producer.send("traces", ("\x01".join(record) + "\x02").encode(), keys=["ID9", "k1"])

    asyncio.run(main())
    until(
        lambda: gantry.run("trace", "ID9", "--topic", "traces")[0] == 0
    )  # the nameserver hears of a topic a moment later
    (row,) = gantry.rows("trace", "ID9", "--topic", "traces")
    assert (row["what"], row["topic"], row["took"], row["ok"]) == ("sent", "mail", 12, True)
    assert "producers" in gantry.ok("trace", "ID9", "--topic", "traces")


def test_brokers_and_cluster(gantry: Runner) -> None:
    (row,) = gantry.rows("broker", "list")
    assert not row["draining"]
    broker = row["name"]
    (show,) = gantry.rows("broker", "show", broker)
    assert show["logEnd"] >= show["flushed"]
    assert "flushDiskType" in gantry.ok("broker", "config", broker, "--grep", "flush")
    gantry.ok("broker", "config", broker, "--set", "brokerPermission=6")
    code, _, err = gantry.run("broker", "config", broker, "--set", "listenPort=1")
    assert code == 1
    assert "cannot be changed" in err
    assert gantry.run("broker", "show", "nope")[0] == 3
    assert broker in gantry.ok("broker", "stats")
    assert broker in gantry.ok("cluster")
    (first, *_) = gantry.rows("cluster")
    assert first["broker"] == broker


@pytest.mark.slow
@pytest.mark.parametrize("width", [40, 60, 160])
def test_screens_fit(gantry: Runner, width: int) -> None:
    gantry.ok("topic", "create", "a-topic-whose-name-is-rather-long-for-a-small-terminal")
    env = {**os.environ, "NAMESRV_ADDR": gantry.nameserver, "COLUMNS": str(width)}
    for words in (("cluster",), ("top",)):
        done = subprocess.run(
            [sys.executable, "-m", "gantrymq", *words], capture_output=True, text=True, timeout=LIMIT_S, check=True, env=env,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert all(len(line) <= width for line in done.stdout.splitlines()), done.stdout
        assert "\x1b" not in done.stdout  # no terminal, no colour


def test_nobody_there(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "127.0.0.1:1")
    monkeypatch.setattr(routes, "ASK_TIMEOUT_S", 1.0)
    assert run_app(["group", "list"]) == 4
    assert "start one there (`gantry up`), or name another: --nameserver" in capsys.readouterr().err


# The live screen.


class Terminal:
    """`gantry top` in a pseudo-terminal of a given size."""

    def __init__(self, nameserver: str, columns: int, **environment: str) -> None:
        self.text = ""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update({"NAMESRV_ADDR": nameserver, "TERM": "xterm-256color", **environment})
            os.environ.pop("COLUMNS", None)
            # A shell without job control starts what is to run in the background with SIGINT ignored, and that is inherited.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.execv(sys.executable, [sys.executable, "-m", "gantrymq", "top", "--interval", "0.3"])
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))

    def until(self, part: str) -> str:
        """Read until it was shown; what came since the last call."""
        came = ""
        end = time.monotonic() + LIMIT_S
        while part not in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", came):
            assert time.monotonic() < end, f"{part!r} never came: {came[-3000:]!r}"
            if select.select([self.fd], [], [], 0.2)[0]:
                came += os.read(self.fd, 65536).decode("utf-8", "replace")
        self.text += came
        return came

    def press(self, keys: str) -> None:
        os.write(self.fd, keys.encode())

    def end(self) -> int:
        """Exit code; the screen must be given back."""
        end = time.monotonic() + LIMIT_S
        try:
            while select.select([self.fd], [], [], LIMIT_S)[0]:
                if time.monotonic() > end:  # it paints for ever
                    os.kill(self.pid, signal.SIGKILL)
                data = os.read(self.fd, 65536)
                if not data:
                    break
                self.text += data.decode("utf-8", "replace")
        except OSError:
            pass  # the other side is closed
        os.close(self.fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.mark.parametrize(("columns", "environment", "colour"), [(120, {}, True), (50, {"NO_COLOR": "1"}, False)])
def test_top(gantry: Runner, columns: int, environment: dict[str, str], colour: bool) -> None:
    gantry.ok("topic", "create", "screen")
    send(gantry.nameserver, "screen", 50)
    consume(gantry.nameserver, "screen", "viewers")
    send(gantry.nameserver, "screen", 7)
    terminal = Terminal(gantry.nameserver, columns, **environment)
    terminal.until("viewers")
    terminal.press("s")
    terminal.until("by total" if columns > 60 else "gantry ")
    terminal.press(" ")
    terminal.until("paused")
    terminal.press(" q")
    assert terminal.end() == 0
    assert "\x1b[?1049h" in terminal.text
    assert "\x1b[?1049l" in terminal.text
    assert "\x1b[?25h" in terminal.text  # the cursor is back
    assert ("\x1b[36m" in terminal.text) is colour
    assert "connections" in terminal.text


def test_top_ends_with_ctrl_c(gantry: Runner) -> None:
    terminal = Terminal(gantry.nameserver, 80)
    terminal.until("connections")
    os.kill(terminal.pid, signal.SIGINT)
    assert terminal.end() == 130
    assert "\x1b[?1049l" in terminal.text
    assert "Traceback" not in terminal.text


# Metrics.


def get(server: Gantry, path: str, door: str = "metrics") -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{server.doors[door]}{path}", timeout=LIMIT_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def samples(text: str) -> dict[tuple[str, str], float]:
    """(name, topic or protocol) to value, through the reference parser."""
    return {
        (
            sample.name,
            sample.labels.get("topic") or sample.labels.get("protocol") or sample.labels.get("le") or "",
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_of_a_running_broker(server: Gantry, gantry: Runner) -> None:
    gantry.ok("topic", "create", "counted")
    before = samples(get(server, "/metrics")[1])
    send(gantry.nameserver, "counted", 20)
    consume(gantry.nameserver, "counted", "counters")
    found = until(
        lambda: (
            (seen := samples(get(server, "/metrics")[1])).get(("rocketmq_messages_in_total", "counted")) == 20 and seen
        )
    )
    assert found["rocketmq_messages_out_total", "counted"] == 20
    assert found["gantry_put_messages_total", ""] - before["gantry_put_messages_total", ""] >= 20
    assert found["gantry_send_latency_seconds_bucket", "+Inf"] > before["gantry_send_latency_seconds_bucket", "+Inf"]
    assert found["gantry_pull_answer_messages_sum", ""] > before["gantry_pull_answer_messages_sum", ""]
    assert found["gantry_born_to_pulled_seconds_count", ""] > before["gantry_born_to_pulled_seconds_count", ""]
    assert until(lambda: samples(get(server, "/metrics")[1])["gantry_flush_seconds_count", ""] > 0)
    assert found["gantry_protocol_connections", "metrics"] >= 1
    assert get(server, "/healthz") == (200, "ok\n")
    assert get(server, "/readyz") == (200, "ok\n")
    assert get(server, "/nope")[0] == 404


def test_a_broker_without_nameserver_is_not_ready(tmp_path: Path) -> None:
    process = Process("broker", tmp_path, ["broker", "--data", str(tmp_path / "data"), "--nameserver", "127.0.0.1:1"])
    try:
        process.start()
        address = process.doors["metrics"]
        assert cluster_get(address, "/readyz") == 503
        assert cluster_get(address, "/healthz") == 200
    finally:
        process.kill()


def test_log_lines_are_objects(server: Gantry) -> None:
    lines = [line for line in server.log().splitlines() if line.startswith("{")]
    assert lines
    for line in lines:
        assert {"time", "level", "logger", "message"} <= json.loads(line).keys()


# A cluster.


@pytest.mark.slow
def test_drain_and_readiness(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = Cluster(tmp_path, brokers=2, gateways=1)
    try:
        cluster.start()
        nameserver = cluster.process("ns0").doors["nameserver"]
        gantry = Runner(nameserver, monkeypatch, capsys)
        gantry.ok("topic", "create", "orders")
        send(nameserver, "orders", 40)
        consume(nameserver, "orders", "readers")
        send(nameserver, "orders", 40)
        code, _, err = gantry.run("broker", "drain", "broker-1", "--yes", "--timeout", "1")
        assert code == 1
        assert "not consumed by groups" in err
        assert "readers in orders" in err
        (drained,) = [row for row in gantry.rows("broker", "list") if row["name"] == "broker-1"]
        assert drained["draining"]
        routes = {row["broker"]: row["perm"] for row in gantry.rows("topic", "route", "orders")}
        assert routes == {"broker-0": "rw", "broker-1": "r"}
        send(nameserver, "orders", 10)  # all to the other one
        assert len(consume(nameserver, "orders", "readers")) == 50
        assert "may be stopped" in gantry.ok("broker", "drain", "broker-1", "--yes", "--timeout", "120")
        gantry.ok("broker", "drain", "broker-1", "--undo")
        routes = until(lambda: {row["perm"] for row in gantry.rows("topic", "route", "orders")} == {"rw"})
        assert routes

        async def draining() -> bool:
            async with Admin(nameserver) as admin:
                return (await overview(admin, (await admin.cluster()).masters()["broker-1"]))["draining"]

        assert not asyncio.run(draining())
        gateway = cluster.process("gateway0")
        assert cluster_get(gateway.doors["metrics"], "/readyz") == 200
        for number in range(2):
            cluster.process(f"broker{number}").kill()
        until(lambda: cluster_get(gateway.doors["metrics"], "/readyz") == 503)
        assert cluster_get(gateway.doors["metrics"], "/healthz") == 200
    finally:
        for process in reversed(cluster.processes):
            process.kill()


def cluster_get(address: str, path: str) -> int:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=LIMIT_S) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
