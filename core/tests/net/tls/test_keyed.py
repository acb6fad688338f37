"""Pre-shared keys: what files of them may be, who comes in with which key, and that nobody learns what there is."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import socket
import ssl
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from gantrymq.net.held.limits import PumpLimits
from gantrymq.net.listen import Listener, listen
from gantrymq.net.places import parse_place
from gantrymq.net.process.host import PumpHost
from gantrymq.net.testing import ManualClock, ManualWheel
from gantrymq.net.tls.contexts import TlsConfig, TlsError
from gantrymq.net.tls.keyed import KEY_BYTES_MAX, KeyedContext, read_keys
from gantrymq.net.turn import LoopTurn
from tests.net.test_pump import EchoDoor

able = pytest.mark.skipif(not getattr(ssl, "HAS_PSK", False), reason="pre-shared keys need Python 3.13 or newer")
VERSIONS = (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)
KEYS = {"press-7": bytes(range(32)), "press 8, größer": b"\xa5" * 16}


def key_file(directory: Path, text: str | None = None, mode: int = 0o600) -> Path:
    path = directory / "psk"
    path.write_text(text if text is not None else "".join(f"{name}:{key.hex()}\n" for name, key in KEYS.items()))
    path.chmod(mode)
    return path


def context_of(path: Path, options: str = "") -> KeyedContext:
    place = parse_place(f"tls://127.0.0.1:0?psk_file={path}{options}")
    return KeyedContext(TlsConfig().of(place), place, ["echo"])


def client(identity: str, key: bytes, version: ssl.TLSVersion | None = None) -> ssl.SSLContext:
    context: Any = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if version is not None:
        context.minimum_version = context.maximum_version = version
    context.set_ciphers("PSK")
    context.hints = hints = []
    context.set_psk_client_callback(lambda hint: (hints.append(hint), (identity, key))[1])
    assert isinstance(context, ssl.SSLContext)
    return context


def test_a_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert read_keys(key_file(tmp_path, "# fleet\n\na:b:00FF\n".replace("a:b:", "a b:") + "c:" + "11" * 16)) == {
        "a b": b"\x00\xff",
        "c": b"\x11" * 16,
    }
    (record,) = caplog.records
    assert "1 of 2 keys have under 128 bits" in record.getMessage()
    assert "00ff" not in record.getMessage().lower()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "there is no key in it"),
        ("alice\n", "line 1: must be IDENTITY:KEY"),
        ("a:00\nbob:0xbeef\n", "line 2: must be IDENTITY:KEY"),
        (":beef\n", "line 1: must be IDENTITY:KEY"),
        ("a:bee\n", "line 1: must be IDENTITY:KEY"),
        ("a:" + "00" * (KEY_BYTES_MAX + 1), "line 1: must be IDENTITY:KEY"),
        ("é" * 65 + ":beef\n", "line 1: an identity has at most 128 bytes"),
        ("a:beef\na:beef\n", "line 2: identity 'a' stands there twice"),
    ],
)
def test_lines_that_are_none_are_said_without_their_key(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint) as caught:
        read_keys(key_file(tmp_path, text))
    assert "bee" not in str(caught.value)


def test_a_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="others may read it: chmod 600"):
        read_keys(key_file(tmp_path, mode=0o640))


def test_what_this_python_cannot_do_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = key_file(tmp_path)
    monkeypatch.delattr(ssl, "HAS_PSK", raising=False)
    with pytest.raises(TlsError, match=r"needs Python 3.13 or newer, and this is 3\.\d+.*start gantry with one"):
        context_of(path)
    monkeypatch.setattr(ssl, "HAS_PSK", False, raising=False)
    with pytest.raises(TlsError, match="needs an OpenSSL with pre-shared keys"):
        context_of(path)


@able
def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TlsError, match=r'psk_file = ".*/psk": No such file'):
        context_of(tmp_path / "psk")


class Slow:
    """A gate that holds up who is listed."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.failures: list[str] = []
        self.answer = ""

    def wait(self, peer: str, go: Callable[[str], None]) -> None:
        self.asked.append(peer)
        go(self.answer)

    def failed(self, peer: str, identity: str) -> None:
        self.failures.append(identity)


class Bench:
    def __init__(self, path: Path, options: str = "&psk_hint=plant", scheme: str = "tls") -> None:
        self.place = parse_place(f"{scheme}://127.0.0.1:0?psk_file={path}{options}")
        self.context = KeyedContext(TlsConfig().of(self.place), self.place, ["echo"])
        self.context.gate = self.gate = Slow()
        self.doors: list[EchoDoor] = []
        self.listener: Listener

    def make(self) -> EchoDoor:
        self.doors.append(EchoDoor())
        return self.doors[-1]

    async def __aenter__(self) -> Bench:
        turn = LoopTurn(asyncio.get_running_loop().call_soon)
        self.host = PumpHost(turn, ManualWheel(ManualClock()), PumpLimits())
        self.listener = await listen(self.host, self.make, self.place, self.context)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.listener.close()
        self.listener.abort_connections()
        await asyncio.sleep(0)

    async def echo(self, context: ssl.SSLContext | None) -> bytes:
        reader, writer = await asyncio.open_connection(*self.listener.address, ssl=context)
        writer.write(b"hello")
        with contextlib.closing(writer):
            return await reader.readexactly(5)

    async def refused(self, context: ssl.SSLContext) -> Exception:
        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)) as caught:
            await self.echo(context)
        return caught.value


def run(scenario: Callable[[], Any]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(30):
            await scenario()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(limited())


@able
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("as_user", [True, False])
def test_each_connection_has_its_own_identity(tmp_path: Path, version: ssl.TLSVersion, as_user: bool) -> None:
    path = key_file(tmp_path)

    async def scenario() -> None:
        options = f"&psk_hint=plant&use_identity_as_username={str(as_user).lower()}"
        async with Bench(path, options) as bench:
            clients = [client(name, key, version) for name, key in KEYS.items()] * 3
            assert await asyncio.gather(*map(bench.echo, clients)) == [b"hello"] * 6
            found = sorted(door.link.key_user for door in bench.doors)
            assert found == (sorted([*KEYS] * 3) if as_user else [""] * 6)
            assert all(door.link.is_encrypted and door.link.peer_certificate is None for door in bench.doors)
            hints: Any = clients[0]
            # TLS 1.3 has no hints.
            assert set(hints.hints) == ({"plant"} if version == ssl.TLSVersion.TLSv1_2 else {None})
            assert bench.gate.failures == []

    run(scenario)


@able
@pytest.mark.parametrize("version", VERSIONS)
def test_unknown_identities_fail_as_wrong_keys_do(
    tmp_path: Path, version: ssl.TLSVersion, caplog: pytest.LogCaptureFixture
) -> None:
    path = key_file(tmp_path)

    async def scenario() -> None:
        async with Bench(path, "&use_identity_as_username=true") as bench:
            with caplog.at_level(logging.INFO):
                wrong = await bench.refused(client("press-7", b"\x01" * 32, version))
                unknown = await bench.refused(client("press-9", b"\x01" * 32, version))
            assert str(wrong) == str(unknown)
            first, second = [record.getMessage().partition(": ")[2] for record in caplog.records]
            assert first == second != "", "not at the same step of the handshake"
            assert bench.gate.failures == ["press-7", "press-9"]
            assert not any(door.events for door in bench.doors)
            assert bench.host.traffic.accepted == 0

    run(scenario)


@able
@pytest.mark.parametrize("version", VERSIONS)
def test_who_has_no_key_is_refused_and_is_no_failed_login(tmp_path: Path, version: ssl.TLSVersion) -> None:
    path = key_file(tmp_path)

    async def scenario() -> None:
        async with Bench(path) as bench:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            context.minimum_version = context.maximum_version = version
            await bench.refused(context)
            assert bench.gate.failures == []
            assert bench.host.traffic.accepted == 0

    run(scenario)


@able
def test_no_session_is_resumed(tmp_path: Path) -> None:
    """One that is resumed says no identity."""
    path = key_file(tmp_path)

    async def scenario() -> None:
        async with Bench(path, "&use_identity_as_username=true") as bench:
            context = client("press-7", KEYS["press-7"], ssl.TLSVersion.TLSv1_2)

            def connect(session: Any) -> Any:
                raw = socket.create_connection(bench.listener.address)
                with context.wrap_socket(raw, session=session) as peer:
                    peer.sendall(b"x")
                    assert peer.recv(1) == b"x"
                    found = peer.session, peer.session_reused
                    peer.unwrap()  # else its session is forgotten by any server
                    return found

            session, _ = await asyncio.to_thread(connect, None)
            _, reused = await asyncio.to_thread(connect, session)
            assert not reused
            assert [door.link.key_user for door in bench.doors] == ["press-7", "press-7"]

    run(scenario)


@able
def test_an_address_that_failed_too_often_does_not_begin(tmp_path: Path) -> None:
    path = key_file(tmp_path)

    async def scenario() -> None:
        async with Bench(path) as bench:
            bench.gate.answer = "too many logins from your address wait: come again"
            await bench.refused(client("press-7", KEYS["press-7"]))
            bench.gate.answer = ""
            assert await bench.echo(client("press-7", KEYS["press-7"])) == b"hello"
            assert len(bench.gate.asked) == 2

    run(scenario)


@able
def test_plain_connections_beside_keys(tmp_path: Path) -> None:
    path = key_file(tmp_path)

    async def scenario() -> None:
        async with Bench(path, "&use_identity_as_username=true", "any") as bench:
            assert await bench.echo(None) == b"hello"
            assert await bench.echo(client("press-7", KEYS["press-7"])) == b"hello"
            assert [door.link.key_user for door in bench.doors] == ["", "press-7"]

    run(scenario)


@able
def test_a_changed_file_is_read_and_a_broken_one_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = key_file(tmp_path)

    async def scenario() -> None:
        async with Bench(path) as bench:
            key_file(tmp_path, "press-7\n")
            with caplog.at_level(logging.INFO):
                bench.context.reload_if_changed()
            assert [record.levelname for record in caplog.records] == ["ERROR"]
            assert await bench.echo(client("press-7", KEYS["press-7"])) == b"hello"
            key_file(tmp_path, "press-7:" + "ab" * 32)
            bench.context.reload_if_changed()
            await bench.refused(client("press-7", KEYS["press-7"]))
            assert await bench.echo(client("press-7", b"\xab" * 32)) == b"hello"
            os.unlink(path)
            assert not bench.context.reload()
            assert await bench.echo(client("press-7", b"\xab" * 32)) == b"hello"

    run(scenario)


@able
def test_the_context_of_a_connection_goes_with_it(tmp_path: Path) -> None:
    """Without the collector of cycles: 13 KiB each."""
    context = context_of(key_file(tmp_path))
    gc.disable()
    try:
        gone = weakref.ref(context.for_connection())
        assert gone() is None
    finally:
        gc.enable()
