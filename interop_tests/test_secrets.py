"""[C3] Marked secrets planted wherever one can be given: none of them in a log, an answer, a process list, an export, a dump or a file but its own."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pika.exceptions
import pytest

from gantrymq.auth.rows import USERS
from gantrymq.broker.tables.tables import topic_of
from gantrymq.client.client import Client
from gantrymq.model.errors import GantryError
from gantrymq.model.names import AUDIT_TOPIC
from gantrymq.remoting import overview_codes
from gantrymq.remoting.codec import Command
from gantrymq.remoting.constants import RequestCode
from interop_tests.accounts import ADMIN, PASSWORD, Guarded
from interop_tests.running import GANTRY, free_port
from interop_tests.test_auth_amqp import connect as amqp
from interop_tests.test_mqtt_paho import Paho
from interop_tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::ResourceWarning")]

MARKS = {
    "user": "Mark1-of-a-user",
    "changed": "Mark2-of-a-changed-user",
    "wrong": "Mark3-of-who-mistypes",
    "cluster": "Mark4-of-the-cluster-key-which-is-long",
    "bridge": "Mark5-of-a-bridge",
    "local": "Mark6-of-a-bridges-local-side",
    "bearer": "Mark7-of-a-bearer",
}
ALL = [*MARKS.values(), PASSWORD]

MANAGEMENT = free_port()

READ_ONLY = [
    RequestCode.GET_BROKER_CONFIG, RequestCode.GET_BROKER_RUNTIME_INFO, RequestCode.GET_NAMESRV_CONFIG, RequestCode.GET_ALL_TOPIC_CONFIG,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, RequestCode.AUTH_LIST_USER, RequestCode.AUTH_LIST_ACL, overview_codes.OVERVIEW,
    overview_codes.AUTH_STATUS, overview_codes.AUDIT, overview_codes.TOPIC_LIST, overview_codes.GROUP_LIST,
]  # fmt: skip


def found_in(data: bytes, marks: list[str]) -> list[str]:
    """Those that are there, as they are or in base64, at whatever place of it."""
    found = [mark for mark in marks if mark.encode() in data]
    for mark in marks:
        for shift in range(3):
            encoded = base64.b64encode(b"\0" * shift + mark.encode())[4 if shift else 0 : -4]
            if encoded in data:
                found.append(f"{mark} in base64")
    return found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    directory = tmp_path_factory.mktemp("marked")
    (directory / "cluster.key").write_text(MARKS["cluster"] + "\n")
    (directory / "cluster.key").chmod(0o600)
    (directory / "bridge.password").write_text(MARKS["bridge"] + "\n")
    (directory / "bridges.conf").write_text(
        f"connection away\naddress 127.0.0.1:9\nremote_username us\nremote_password_file {directory}/bridge.password\n"
        f"local_password {MARKS['local']}\ntopic away/# out 1\n"
    )
    settings = (
        f"auth.cluster_key_file={directory}/cluster.key", f"mqtt.bridges={directory}/bridges.conf", "server.log_level=debug",
        f"amqp.management_port={MANAGEMENT}",
    )  # fmt: skip
    gantry = Guarded(directory, settings=settings)
    gantry.program = GANTRY  # so that its command line is what a user's is
    try:
        gantry.start()
        plant(gantry)
        yield gantry
    finally:
        gantry.stop()


def plant(gantry: Guarded) -> None:
    """Say the secrets at every door, rightly and wrongly."""
    gantry.add_user(
        "alice", MARKS["user"], ("mqtt:own/#", "pub,sub"), ("topic:own", "pub"), amqp={"/": [".*", ".*", ".*"]}
    )
    gantry.add_user("bob", "to-be-changed", ("topic:own", "pub"))
    gantry.accounts(lambda accounts: accounts.update_user("bob", password=MARKS["changed"]))
    failed: list[tuple[str, str]] = []
    for user, password in (
        ("alice", MARKS["user"]),
        ("alice", MARKS["wrong"]),
        ("bob", MARKS["changed"]),
        (MARKS["wrong"], "x"),
    ):
        client = Paho(gantry, f"c-{user}")
        client.client.username_pw_set(user, password)
        try:
            client.start()
            client.stop()
        except AssertionError:
            failed.append((user, password))
        try:
            amqp(gantry, user, password).close()
        except pika.exceptions.AMQPError:
            failed.append((user, password))
        headers = {"ce-id": "1", "ce-source": "/s", "ce-type": "t", "ce-specversion": "1.0"}
        host, port = gantry.address("cloudevents")
        httpx.post(f"http://{host}:{port}/topics/own", headers=headers, content=b"x", auth=(user, password), timeout=60)
    assert [who for who in failed if MARKS["wrong"] not in who] == []
    httpx.post(
        f"http://{host}:{port}/topics/own",
        headers={"authorization": f"Bearer {MARKS['bearer']}"},
        content=b"x",
        timeout=60,
    )
    for password in (MARKS["user"], MARKS["wrong"]):
        with pytest.raises(GantryError) as caught:
            gantry.accounts(lambda accounts: accounts.users(), "alice", password)
        assert not found_in(str(caught.value).encode(), ALL)
    with socket.create_connection(gantry.address("mqtt"), 30) as bad:  # half a login, and rubbish behind it
        bad.sendall(b"\x10\x30\x00\x04MQTT\x04\xc2\x00\x3c" + MARKS["user"].encode() * 3)
    until(lambda: b"bridge" in gantry.log().encode())


def run(server: Guarded, *words: str, at: bool = True) -> bytes:
    environment = {"PATH": os.environ["PATH"], "GANTRY_USER": ADMIN, "GANTRY_PASSWORD": PASSWORD,
                   "GANTRY_AUTH__CLUSTER_KEY_FILE": str(server.directory / "cluster.key")}  # fmt: skip
    command = [sys.executable, "-m", "gantrymq", *words, *(["--nameserver", server.nameserver] if at else [])]
    done = subprocess.run(command, env=environment, capture_output=True, timeout=120)
    assert b"Traceback" not in done.stderr, done.stderr
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_nothing_of_it_is_in_the_log_or_the_process_list(server: Guarded) -> None:
    said = server.log().encode()
    assert b"DEBUG" in said
    # A user's name is not a secret: whoever types the password there has it in the trail and in the log.
    assert not found_in(said, [mark for mark in ALL if mark != MARKS["wrong"]])
    for process in server.processes:
        line = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        assert not found_in(line, ALL)
        assert not found_in((server.directory / f"{process.name}.ready.json").read_bytes(), ALL)


def test_no_answer_of_administration_has_it(server: Guarded) -> None:
    async def ask() -> list[tuple[int, bytes]]:
        said = []
        async with Client(server.nameserver, ADMIN, PASSWORD) as client:
            for code in READ_ONLY:
                door = "nameserver" if code == RequestCode.GET_NAMESRV_CONFIG else "broker"
                answer = await client.ask(server.doors[door], Command(code, {}), "a test")
                said.append((int(code), answer.body + json.dumps(answer.fields).encode()))
            for code, fields in (
                (RequestCode.AUTH_GET_USER, {"username": "alice"}),
                (RequestCode.AUTH_GET_ACL, {"subject": "User:alice"}),
            ):
                answer = await client.ask(server.doors["broker"], Command(code, fields), "a test")
                said.append((int(code), answer.body))
        return said

    said = asyncio.run(ask())
    assert all(body for _, body in said)
    for code, body in said:
        assert not found_in(body, [mark for mark in ALL if code != overview_codes.AUDIT or mark != MARKS["wrong"]]), (
            code
        )
        assert b"$argon2" not in body, code
        assert b"$7$" not in body, code


def test_no_page_and_no_command_has_it(server: Guarded) -> None:
    pages = [f"http://{server.doors['metrics']}/{path}" for path in ("metrics", "healthz", "readyz")]
    said = [httpx.get(page, timeout=60).content for page in pages]
    names = ("overview", "users", "definitions", "connections", "permissions", "whoami")
    said += [
        httpx.get(f"http://127.0.0.1:{MANAGEMENT}/api/{name}", auth=(ADMIN, PASSWORD), timeout=60).content
        for name in names
    ]
    commands = (
        ("user", "list", "--json"), ("user", "show", "alice", "--json"), ("policy", "list", "--json"), ("auth", "status"),
        ("bridge", "list"), ("mqtt", "clients"), ("broker", "config", "broker-a"), ("cluster",),
    )  # fmt: skip
    said += [run(server, *words) for words in commands]
    for text in said:
        assert not found_in(text, ALL), text[:200]
    shown = run(
        server, "config", "show", "--json", f"--set=auth.cluster_key_file={server.directory}/cluster.key", at=False
    )
    assert b"cluster_key_file" in shown
    assert not found_in(shown, ALL)


def test_the_directory_has_it_in_its_own_files_alone(server: Guarded) -> None:
    """Last: the server is stopped for it. What a signing user signs with is encrypted; the key to it lies in one file."""
    key = (server.directory / "data/gantry/auth.key").read_text().split()[1]
    for process in server.processes:
        assert process.stop() == 0
    data = str(server.directory / "data")
    store = f"{data}/store"
    dumped = b""
    for topic in (topic_of(USERS), AUDIT_TOPIC):
        lines = run(server, "store", "dump", store, "--topic", topic, "--json", at=False)
        assert lines.count(b"\n") > 1, lines
        dumped += lines + b"".join([base64.b64decode(json.loads(line)["body"]) for line in lines.splitlines()])
    dumped += run(server, "store", "stats", store, "--json", at=False) + run(
        server, "store", "rows", data, "--json", at=False
    )
    assert not found_in(dumped, [mark for mark in ALL if mark != MARKS["wrong"]])
    assert b"$argon2" not in dumped
    assert key.encode() not in dumped
    for path in files_of(server.directory / "data"):
        content = path.read_bytes()
        assert not found_in(content, [mark for mark in ALL if mark != MARKS["wrong"]]), path
        assert (key.encode() in content) == (path.name == "auth.key"), path
        if path.name == "auth.key":
            assert path.stat().st_mode & 0o077 == 0
    server.restart()


def files_of(directory: Path) -> list[Path]:
    return [path for path in sorted(directory.rglob("*")) if path.is_file()]


def test_a_key_is_replaced_and_what_it_encrypted_is_written_anew(tmp_path: Path) -> None:
    server = Guarded(tmp_path)
    path = tmp_path / "data/gantry/auth.key"
    try:
        server.start()
        server.add_user("alice", MARKS["user"], ("topic:own", "pub"))
        signs(server)
        first = path.read_text().split()[0]
        assert server.process("up").stop() == 0
        assert b"key" in run(server, "auth", "key", str(path), at=False)
        second = path.read_text().split()[0]
        assert second != first
        server.restart()
        signs(server)
        assert re.search(
            rf"2 of 2 secrets that older keys had encrypted are encrypted under key {second}", server.log()
        )
        assert server.process("up").stop() == 0
        assert first.encode() in run(server, "auth", "key", str(path), "--drop-old", "--yes", at=False)
        assert path.read_text().count("\n") == 1
        server.restart()
        signs(server)
    finally:
        server.stop()


def signs(server: Guarded) -> None:
    """Both users' secrets can be read."""
    found: Any = server.accounts(lambda accounts: accounts.users())
    assert {user["username"] for user in found} >= {"alice", ADMIN}
    with pytest.raises(GantryError, match="no administrator"):
        server.accounts(lambda accounts: accounts.users(), "alice", MARKS["user"])
