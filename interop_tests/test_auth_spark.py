"""Spark's connections to servers with users and TLS: they sign and encrypt as the environment of their process says. No Spark is needed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.tests.net.tls.certs import make_certificates
from gantrymq.client.client import Client
from gantrymq.client.producing.producer import Producer
from gantrymq.model.errors import ErrorCode, GantryError
from gantrymq.remoting.constants import RequestCode
from gantrymq.spark.wire import Metadata, close_all
from interop_tests.accounts import Guarded
from interop_tests.running import free_port
from interop_tests.waiting import until

PASSWORD = "alice-pass"


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("certs"), "alice", "mallory")


async def publish(server: Guarded) -> None:
    async with Client(server.nameserver, "alice", PASSWORD) as client, Producer(client=client) as producer:
        for number in range(8):
            await producer.send("orders", b"%d" % number)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, certs: Path) -> Iterator[Guarded]:
    """TLS or none on each port; user alice may use topic orders."""
    settings = (
        f"tls.cert={certs}/server.pem",
        f"tls.key={certs}/server.key",
        f"tls.client_ca={certs}/ca.pem",
        "tls.client_cert=optional",
        f"broker.listeners=any://127.0.0.1:{free_port(-2)}",
        f"nameserver.listeners=any://127.0.0.1:{free_port()}",
    )
    gantry = Guarded(tmp_path_factory.mktemp("gantry"), settings=settings)
    try:
        gantry.start()
        gantry.add_user("alice", PASSWORD, ("topic:orders", "pub,sub"), ("topic:orders", "get"))
        asyncio.run(publish(gantry))
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("GANTRY_USER", "alice")
            patched.setenv("GANTRY_PASSWORD", PASSWORD)
            # The nameserver knows a topic some time after its broker made it for a message.
            until(lambda: messages(gantry), ignored=(GantryError,))
        yield gantry
    finally:
        gantry.stop()


@pytest.fixture(autouse=True)
def connections(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """None is kept from test to test, nor is who they were."""
    for name in ("GANTRY_USER", "GANTRY_PASSWORD", "GANTRY_TLS_CA", "GANTRY_TLS_CERT", "GANTRY_TLS_KEY"):
        monkeypatch.delenv(name, raising=False)
    close_all()
    yield
    close_all()


def messages(server: Guarded) -> int:
    metadata = Metadata([server.nameserver])
    return sum(metadata.offsets(metadata.queues(["orders"]), RequestCode.GET_MAX_OFFSET).values())


@pytest.mark.parametrize("tls", [False, True])
def test_a_user_of_the_environment_reads(
    server: Guarded, certs: Path, monkeypatch: pytest.MonkeyPatch, tls: bool
) -> None:
    monkeypatch.setenv("GANTRY_USER", "alice")
    monkeypatch.setenv("GANTRY_PASSWORD", PASSWORD)
    if tls:
        monkeypatch.setenv("GANTRY_TLS_CA", str(certs / "ca.pem"))
    assert messages(server) == 8


@pytest.mark.parametrize("client", ["alice", "mallory"])
def test_a_client_certificate_says_who_it_is(
    server: Guarded, certs: Path, monkeypatch: pytest.MonkeyPatch, client: str
) -> None:
    monkeypatch.setenv("GANTRY_TLS_CA", str(certs / "ca.pem"))
    monkeypatch.setenv("GANTRY_TLS_CERT", str(certs / f"{client}.pem"))
    monkeypatch.setenv("GANTRY_TLS_KEY", str(certs / f"{client}.key"))
    if client == "alice":
        assert messages(server) == 8
        return
    with pytest.raises(GantryError) as caught:
        messages(server)
    assert caught.value.code is ErrorCode.NO_PERMISSION


@pytest.mark.parametrize(("user", "password"), [("", ""), ("alice", "wrong-pass"), ("nobody", PASSWORD)])
def test_others_are_refused_and_no_secret_is_said(
    server: Guarded, monkeypatch: pytest.MonkeyPatch, user: str, password: str
) -> None:
    monkeypatch.setenv("GANTRY_USER", user)
    monkeypatch.setenv("GANTRY_PASSWORD", password)
    with pytest.raises(GantryError) as caught:
        messages(server)
    assert caught.value.code is ErrorCode.NO_PERMISSION
    assert not password or password not in caught.value.text


def test_a_server_of_another_ca_is_not_trusted(
    server: Guarded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GANTRY_TLS_CA", os.fspath(make_certificates(tmp_path) / "ca.pem"))
    with pytest.raises(GantryError, match="certificate refused: ") as caught:
        messages(server)
    assert caught.value.code is ErrorCode.UNAVAILABLE
