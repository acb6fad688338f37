"""Our bridge to a real Mosquitto: topics out, in and both with prefixes, store and forward over its death, no message round and round."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from interop_tests import guard
from interop_tests.running import Gantry, free_port
from interop_tests.test_mqtt_paho import Paho
from interop_tests.waiting import until

MOSQUITTO = shutil.which("mosquitto", path=os.environ.get("PATH", "") + ":/usr/sbin")

pytestmark = pytest.mark.skipif(MOSQUITTO is None, reason="there is no mosquitto here (Debian: apt install mosquitto)")

BRIDGE = """
connection site
address 127.0.0.1:{port}
topic up/# out 1 here/ there/
topic down/# in 1 here/ there/
topic shared/# both 1
restart_timeout 1 1
{extra}
"""


class OtherSide:
    """A Mosquitto that keeps what it has."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self.config = directory / "mosquitto.conf"
        self.config.write_text(
            f"listener {self.port} 127.0.0.1\nallow_anonymous true\nuser {os.environ.get('USER', 'root')}\n"
            f"persistence true\npersistence_location {directory}/\nautosave_interval 1\n"
        )
        self.log = directory / "mosquitto.log"
        self.process: subprocess.Popen[bytes] | None = None

    def address(self, door: str) -> tuple[str, int]:
        """As `Gantry.address`."""
        return "127.0.0.1", self.port

    def start(self) -> OtherSide:
        assert MOSQUITTO is not None
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [MOSQUITTO, "-v", "-c", str(self.config)], stdout=log, stderr=log, env=os.environ | guard.mark()
            )
        return self

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@pytest.fixture(params=["", "try_private false\n"], ids=["private", "echoes"])
def sides(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[Gantry, OtherSide]]:
    other = OtherSide(tmp_path).start()
    bridges = tmp_path / "bridges.conf"
    bridges.write_text(BRIDGE.format(port=other.port, extra=request.param))
    gantry = Gantry(tmp_path, settings=(f"mqtt.bridges={bridges}",))
    try:
        gantry.start()
        yield gantry, other
    finally:
        gantry.stop()
        other.kill()


def bridged(gantry: Gantry, times: int = 1) -> None:
    until(lambda: gantry.processes[0].log().count("bridge site: connected") >= times, 60)


def test_topics_both_ways_and_over_an_outage(sides: tuple[Gantry, OtherSide]) -> None:
    gantry, other = sides
    bridged(gantry)
    here, there = Paho(gantry, "here").start(), Paho(other, "there", clean=False).start()  # type: ignore[arg-type]
    here.subscribe(("here/#", 1), ("shared/#", 1), ("$SYS/bridge/#", 1))
    there.subscribe(("there/#", 1), ("shared/#", 1), ("$SYS/broker/connection/+/state", 1))
    assert here.receive(1) == [("$SYS/bridge/site/state", b"1")]
    ((state, body),) = there.receive(1)
    assert state.startswith("$SYS/broker/connection/")
    assert body == b"1"
    here.publish("here/up/a", "out")
    assert there.receive(1) == [("there/up/a", b"out")]
    there.publish("there/down/a", "in")
    there.publish("there/other", "not ours")
    assert sorted(there.receive(2)) == [("there/down/a", b"in"), ("there/other", b"not ours")]
    assert sorted(here.receive(2)) == [("here/down/a", b"in"), ("here/up/a", b"out")]
    here.publish("shared/x", "from here")
    there.publish("shared/x", "from there")
    for each in (here, there):
        assert sorted(body for _, body in each.receive(2)) == [b"from here", b"from there"]
    there.stop()
    other.kill()
    for i in range(300):
        here.publish("here/up/b", str(i), qos=1)
    other.start()
    bridged(gantry, 2)
    there = Paho(other, "there2").start()  # type: ignore[arg-type]
    there.subscribe(("there/#", 1))
    here.publish("here/up/c", "last")
    seen = there.receive(1)
    while seen[-1] != ("there/up/c", b"last"):
        seen += there.receive(1)
    # What went out before anybody there had subscribed is not for us to see; nothing is out of order or twice.
    numbers = [int(body) for topic, body in seen if topic == "there/up/b"]
    assert numbers == sorted(set(numbers))
    here.stop()
    there.stop()


def test_nothing_is_lost_while_the_other_side_is_away_and_we_are_killed(sides: tuple[Gantry, OtherSide]) -> None:
    gantry, other = sides
    bridged(gantry)
    there = Paho(other, "keeper", clean=False).start()  # type: ignore[arg-type]
    there.subscribe(("there/up/#", 1))
    there.stop()
    until(lambda: "Client keeper disconnected" in other.log.read_text(errors="replace"), 30)
    other_process = other.process
    assert other_process is not None
    other_process.terminate()  # a clean end: Mosquitto keeps its sessions
    other_process.wait()
    here = Paho(gantry, "writer").start()
    for i in range(200):
        here.publish("here/up/n", str(i))
    here.stop()
    gantry.kill_and_restart()
    other.start()
    bridged(gantry, 2)
    there = Paho(other, "keeper", clean=False).start()  # type: ignore[arg-type]
    got = [int(body) for _, body in there.receive(200)]
    assert sorted(set(got)) == list(range(200))
    there.stop()


@pytest.mark.parametrize("sides", [""], indirect=True, ids=["private"])
def test_what_comes_in_as_retained_is_retained_here_and_survives_kill_9(sides: tuple[Gantry, OtherSide]) -> None:
    """Mosquitto says so of a live message to bridges alone."""
    gantry, other = sides
    bridged(gantry)
    here, there = Paho(gantry, "here").start(), Paho(other, "there").start()  # type: ignore[arg-type]
    here.subscribe(("here/down/#", 1))
    there.publish("there/down/kept", "first", retain=True)
    there.publish("there/down/kept", "state", retain=True)
    there.publish("there/down/plain", "no")
    assert len(here.receive(3)) == 3
    here.client.loop_stop()
    gantry.processes[0].kill()
    gantry.processes[0].start()
    late = Paho(gantry, "late").start()
    late.subscribe(("here/down/#", 1))
    assert late.receive(1) == [("here/down/kept", b"state")]
    late.stop()
    there.stop()
