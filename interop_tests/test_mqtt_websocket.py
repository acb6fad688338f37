"""MQTT over WebSockets with clients that nobody here wrote: paho, MQTT.js in Node.js, and MQTT.js in a page of a browser."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
import pytest

from interop_tests import guard
from interop_tests.clients import CLIENT, SCENARIO
from interop_tests.running import Gantry
from interop_tests.test_mqtt_paho import Paho
from interop_tests.test_remoting_foreign import command, needs, node_project

PAGE_S = 60.0


class OverWebSocket(Paho):
    """As `Paho`, through `ws://host:port/mqtt`."""

    def __init__(self, server: Gantry, client_id: str = "", clean: bool = True, **options: Any) -> None:
        path = options.pop("path", "/mqtt")
        super().__init__(server, client_id, clean, **options)
        was = self.client
        self.client = mqtt.Client(was.callback_api_version, client_id, clean, transport="websockets")
        self.client.ws_set_options(path)
        self.client.manual_ack_set(True)
        for name in ("on_message", "on_connect", "on_subscribe", "on_unsubscribe", "on_disconnect"):
            setattr(self.client, name, getattr(was, name))


@pytest.fixture
def client(server: Gantry) -> Iterator[OverWebSocket]:
    client = OverWebSocket(server, "ws").start()
    yield client
    client.stop()


def test_paho_over_websocket_beside_tcp(server: Gantry, client: OverWebSocket) -> None:
    """The same port takes both, and the same messages go over both."""
    assert client.subscribe(("ws/#", 1)) == [1]
    plain = Paho(server, "plain").start()
    plain.subscribe(("ws/#", 1))
    sizes = (0, 1, 125, 126, 65_535, 65_536, 1_000_000)
    for size in sizes:
        client.publish("ws/x", b"x" * size)
    for each in (client, plain):
        assert [len(body) for _, body in each.receive(len(sizes))] == list(sizes)
    plain.publish("ws/y", "from TCP", qos=0)
    assert client.receive(1) == [("ws/y", b"from TCP")]
    plain.stop()


def test_kept_session_changes_transport(server: Gantry) -> None:
    first = OverWebSocket(server, "ws-kept", clean=False).start()
    first.subscribe(("wskept/#", 1))
    first.stop()
    sender = Paho(server, "ws-sender").start()
    sender.publish("wskept/x", "while away")
    sender.stop()
    again = Paho(server, "ws-kept", clean=False).start()
    assert again.present
    assert again.receive(1) == [("wskept/x", b"while away")]
    again.stop()


def test_another_path_is_none(server: Gantry) -> None:
    wrong = OverWebSocket(server, "ws-wrong", path="/elsewhere")
    with pytest.raises(Exception, match="WebSocket handshake"):
        wrong.client.connect(*server.address("mqtt"))


@pytest.mark.slow
@pytest.mark.parametrize("version", ["3", "4"])
def test_mqtt_js(server: Gantry, tmp_path: Path, version: str, record_property: Any) -> None:
    record_property(CLIENT, "MQTT.js 5.16.0 (Node.js)")
    record_property(SCENARIO, f"WebSocket, protocol level {version}")
    project = node_project(tmp_path)
    url = "ws://{}:{}/mqtt".format(*server.address("mqtt"))
    done = command("node", "websocket.js", url, version, "100", cwd=project)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout) == [i * i for i in range(100)]


class Pages(SimpleHTTPRequestHandler):
    """Serves a directory and takes what a page tells."""

    def __init__(self, told: queue.Queue[str], *arguments: Any, **options: Any) -> None:
        self.told = told
        super().__init__(*arguments, **options)

    def do_POST(self) -> None:
        self.told.put(self.rfile.read(int(self.headers["content-length"])).decode())
        self.send_response(204)
        self.end_headers()

    def log_message(self, *arguments: object) -> None: ...


@contextlib.contextmanager
def browser(directory: Path, url: str) -> Iterator[None]:
    """A headless Chromium that shows a page."""
    program = shutil.which("chromium")
    assert program is not None
    words = [
        program,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        f"--user-data-dir={directory}",
        url,
    ]
    process = subprocess.Popen(
        words,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | guard.mark(),
        start_new_session=True,
    )
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.slow
def test_a_page_in_a_browser(server: Gantry, tmp_path: Path, record_property: Any) -> None:
    record_property(CLIENT, "MQTT.js 5.16.0 (Chromium)")
    record_property(SCENARIO, "a page's WebSocket")
    needs("chromium")
    project = node_project(tmp_path)
    shutil.copy(project / "node_modules" / "mqtt" / "dist" / "mqtt.min.js", project)
    told: queue.Queue[str] = queue.Queue()
    pages = ThreadingHTTPServer(("127.0.0.1", 0), partial(Pages, told, directory=str(project)))
    threading.Thread(target=pages.serve_forever, daemon=True).start()
    host, port = server.address("mqtt")
    try:
        with browser(
            tmp_path / "profile", f"http://127.0.0.1:{pages.server_port}/page.html?broker=ws://{host}:{port}/mqtt"
        ):
            assert told.get(timeout=PAGE_S) == "page/x 0, page/x 10, page/x 200000"
        # A page of another host may not: it would reach what is open to this machine alone.
        with browser(
            tmp_path / "other", f"http://localhost:{pages.server_port}/page.html?broker=ws://{host}:{port}/mqtt"
        ):
            assert told.get(timeout=PAGE_S) == "closed"
    finally:
        pages.shutdown()
        pages.server_close()
