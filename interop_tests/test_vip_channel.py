"""RocketMQ's VIP channel: clients before 4.5.1, and rocketmq-dashboard as it comes, go to the broker's port minus two."""

from __future__ import annotations

import socket
from pathlib import Path

from gantrymq.remoting.codec import Command, FrameReader, encode
from gantrymq.remoting.constants import RequestCode
from interop_tests.running import VIP, Gantry


def answer(address: tuple[str, int]) -> Command:
    """Of a broker that is asked for its settings."""
    with socket.create_connection(address, 30) as link:
        link.settimeout(60)
        link.sendall(encode(Command(RequestCode.GET_BROKER_CONFIG, {}, b"", 7)))
        frames = FrameReader()
        while True:
            data = link.recv(65536)
            assert data, "closed"
            for found in frames.feed(data):
                return found


def test_both_ports_answer_alike(server: Gantry) -> None:
    host, port = server.address("broker")
    found, own = answer((host, port + VIP)), answer((host, port))
    assert (found.code, found.opaque, found.body) == (0, 7, own.body)
    assert b"brokerName" in found.body


def test_it_can_be_left_out(tmp_path: Path) -> None:
    gantry = Gantry(tmp_path, settings=("broker.vip_channel=false",))
    try:
        host, port = gantry.start().address("broker")
        with socket.socket() as probe:
            assert probe.connect_ex((host, port + VIP)) != 0
        assert answer((host, port)).code == 0
    finally:
        gantry.kill()
