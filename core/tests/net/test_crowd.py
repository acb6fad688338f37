"""No files left: the listener sheds connections, does not spin, and recovers."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path


def echoes(client: socket.socket) -> bool:
    try:
        client.sendall(b"x")
        return client.recv(1) == b"x"
    except OSError:
        return False


def test_accept_without_files_neither_spins_nor_ends_the_listener() -> None:
    program = Path(__file__).with_name("crowded.py")
    with subprocess.Popen(
        [sys.executable, str(program)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        address = ("127.0.0.1", int(process.stdout.readline()))
        clients = [socket.create_connection(address, 30) for _ in range(60)]
        served = [client for client in clients if echoes(client)]
        assert 10 < len(served) < 40
        assert all(echoes(client) for client in served)
        for client in clients:
            client.close()
        again = False
        while not again:  # until the server has seen that the others are gone
            with socket.create_connection(address, 30) as late:
                again = echoes(late)
        process.stdin.write("\n")
        process.stdin.flush()
        cpu_s, accepted = process.stdout.readline().split()
        assert float(cpu_s) < 1
        assert int(accepted) > len(served)
    assert process.returncode == 0
