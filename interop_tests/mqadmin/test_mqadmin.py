"""mqadmin 5.3.3, unchanged: every command against this broker and against the real one in the same state, outputs compared."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from interop_tests.mqadmin import driver
from interop_tests.mqadmin.commands import EVERYWHERE, NOT_RUN, STEPS, Step, normal
from interop_tests.real_broker import REAL_BROKER, peer
from interop_tests.running import Gantry, free_port
from interop_tests.waiting import until

pytestmark = REAL_BROKER

UNTIL_S = 120.0
TRIES_MAX = 4


class Side:
    """One of the two clusters."""

    def __init__(self, name: str, nameserver: str, broker: str, directory: Path) -> None:
        self.name = name
        self.values = {"n": nameserver, "b": broker, "dir": str(directory), "uniq": "", "off": "", "client": ""}
        directory.mkdir()
        (directory / "topics.json").write_text(
            '[{"topicName":"L1","readQueueNums":2,"writeQueueNums":2,"perm":6},'
            '{"topicName":"L2","readQueueNums":3,"writeQueueNums":3,"perm":6}]'
        )
        (directory / "groups.json").write_text('[{"groupName":"LG1"},{"groupName":"LG2","retryMaxTimes":3}]')

    def learn(self, step: Step, text: str) -> None:
        """Ids that later commands name."""
        if step.name == "!send" and not self.values["uniq"]:
            self.values["uniq"], self.values["off"] = text.split()[:2]
        if step.name == "consumerConnection" and not self.values["client"]:
            found = re.search(r"^(\S+@consumer-\S+)", text, re.MULTILINE)
            self.values["client"] = found.group(1) if found else ""


@pytest.fixture
def sides(tmp_path: Path) -> Iterator[list[Side]]:
    """The real cluster and ours."""
    nameserver, broker = free_port(), free_port(-2, 1)
    real = str(tmp_path / "real")
    ours = Gantry(tmp_path)
    try:
        peer("start", real, str(nameserver), str(broker))
        ours.start()
        yield [
            Side("RocketMQ", f"127.0.0.1:{nameserver}", f"127.0.0.1:{broker}", tmp_path / "real-files"),
            Side("GantryMQ", ours.doors["nameserver"], ours.doors["broker"], tmp_path / "our-files"),
        ]
    finally:
        peer("kill", real)
        ours.stop()


def run(java: driver.Driver, step: Step, side: Side) -> str:
    words = [word.format(**side.values) for word in step.words.split()]
    if not step.until:
        text = java.run(*words, limit_ms=step.limit_ms)
        for _ in range(TRIES_MAX - 1):
            # The tool's own limit, on a machine that is busy with something else. What may have been sent is not sent again.
            late = "getTopicRouteInfoFromNameServer" if "send" in step.name.lower() else ""
            if "RemotingTimeoutException" not in text or late not in text:
                break
            text = java.run(*words, limit_ms=step.limit_ms)
        return text
    last = ""

    def shown() -> bool:
        nonlocal last
        last = java.run(*words, limit_ms=step.limit_ms)
        return re.search(step.until, "\n".join(normal(last, ())), re.DOTALL) is not None

    until(shown, UNTIL_S)
    return last


def test_every_command_is_run_or_left_out_for_a_reason(tmp_path: Path) -> None:
    with driver.Driver(tmp_path) as java:
        known = set(java.run("!commands").split())
    ours = {step.name for step in STEPS if not step.name.startswith("!")}
    assert ours <= known
    assert known - ours - NOT_RUN.keys() == set()


def test_mqadmin_prints_the_same(sides: list[Side], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results: list[str] = []
    failures: list[str] = []
    with driver.Driver(tmp_path / "home") as java:
        for side in sides:  # classes are loaded, connections are made
            run(java, Step("clusterList -n {n}", until="broker-a"), side)
        for step in STEPS:
            printed = []
            for side in sides:
                text = run(java, step, side)
                side.learn(step, text)
                printed.append(text)
                if step.must and step.must not in text:
                    failures.append(f"{side.name}: {step.words}: no {step.must!r} in\n{text[:3000]}")
            if step.name.startswith("!"):
                continue
            real, ours = [normal(text, step.rules) for text in printed]
            verdict = "same"
            if not step.compared:
                verdict = "runs"
            elif real != ours:
                verdict = "DIFFERS"
                failures.append(
                    f"{step.words}\n  only RocketMQ: {[line for line in real if line not in ours]}\n"
                    f"  only GantryMQ: {[line for line in ours if line not in real]}"
                )
            elif step.rules:
                verdict = "same, but: " + "; ".join(dict.fromkeys(why for _, _, why in step.rules))
            results.append(f"{step.words:62.62} {verdict}")
    with capsys.disabled():
        print("\n" + "\n".join(results))
        print("everywhere left out: " + "; ".join(dict.fromkeys(why for _, _, why in EVERYWHERE)))
        print("\n".join([f"{name:35} not run: {why}" for name, why in NOT_RUN.items()]))
    assert not failures, "\n\n".join(failures)
