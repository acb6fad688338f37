"""What /healthz and /readyz are told."""

from __future__ import annotations

from gantrymq.launch.health import STARTING, STOPPING, Health


def test_phases_and_checks() -> None:
    health = Health()
    assert health.waits() == [STARTING]
    assert health.problems() == []
    health.phase = ""
    said = [""]
    health.ready_if("mqtt", lambda: said[0])
    assert health.waits() == []
    said[0] = "shut until its broker is back"
    assert health.waits() == ["mqtt: shut until its broker is back"]
    assert health.problems() == []
    health.alive_if("broker", lambda: "the disk failed")
    assert health.problems() == ["broker: the disk failed"]
    assert health.waits() == ["broker: the disk failed", "mqtt: shut until its broker is back"]
    health.alive_if("broker", lambda: "")  # a broker that was made again
    health.phase = STOPPING
    assert health.waits()[0] == STOPPING
