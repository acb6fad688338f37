"""Which foreign client a test uses, and the table of client, version, scenario and result at the end of a run.

A test says it itself with `record_property("client", ...)` and `record_property("scenario", ...)`, or its module stands in MODULES.
"""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from functools import cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from typing import Final

import pytest

NODE_CLIENT: Final = "ali-ons (Node.js)"
JAVA_CLIENT: Final = "rocketmq-client (Java)"

MODULES: Final[dict[str, tuple[str, ...]]] = {
    "test_mqtt_paho": ("paho-mqtt",),
    "test_mqtt_durability": ("paho-mqtt",),
    "test_mqtt_past": ("paho-mqtt",),
    "test_mqtt_amqtt": ("amqtt",),
    "test_mosquitto_bridge": ("Mosquitto (bridge)", "paho-mqtt"),
    "test_amqp_clients": ("pika", "aiormq", "aio-pika"),
    "test_amqp_crash": ("pika",),
    "test_cloudevents_publish": ("cloudevents", "httpx"),
    "test_cloudevents_push": ("cloudevents",),
    "test_cross_matrix": ("paho-mqtt", "pika", "cloudevents"),
    "test_spark_source": ("pyspark",),
    "test_cross_matrix_spark": ("pyspark",),
    "test_mqadmin": ("mqadmin (Java) 5.3.3",),
}
"""Test module to the packages whose clients it runs; a name with a version in it is shown as it is."""

SCENARIOS: Final[dict[str, tuple[str, str]]] = {
    "test_remoting_foreign.py::test_node": (NODE_CLIENT, "send, consume"),
    "test_remoting_foreign.py::test_java": (f"{JAVA_CLIENT} 5.3.3", "send, pull, push"),
    "test_remoting_sends.py::test_java[4.9.8-JSON]": (
        f"{JAVA_CLIENT} 4.9.8",
        "retries, replies, batches, light queues",
    ),
    "test_remoting_sends.py::test_java[5.3.3-ROCKETMQ]": (
        f"{JAVA_CLIENT} 5.3.3",
        "retries, replies, batches, light queues, binary headers",
    ),
    "test_remoting_sends.py::test_the_real_broker_shows_the_same": (
        f"{JAVA_CLIENT} 5.3.3",
        "the same as with a real broker",
    ),
    "test_remoting_sends.py::test_ali_ons_consumes_in_vain": (NODE_CLIENT, "retry to the dead letters"),
    "test_pop_consumers.py::test_java_client_sees_what_it_sees_with_rocketmq": (f"{JAVA_CLIENT} 5.3.3", "pop"),
}
"""End of a test's id to its client and scenario, where a module uses several."""

TRANSACTIONS: Final = "test_transactions.py"
CLIENT, SCENARIO = "client", "scenario"


@cache
def _version(package: str) -> str:
    if package[-1].isdigit():
        return package
    try:
        return f"{package} {installed(package)}"
    except PackageNotFoundError:
        return package


@cache
def node_client() -> str:
    """`ali-ons` with the version of the lock file; Node.js's own is said too."""
    node = shutil.which("node")
    if node is None:
        return NODE_CLIENT
    said = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=20, check=False)
    return f"ali-ons (Node.js {said.stdout.strip()})"


def mark(item: pytest.Item) -> None:
    """Note the client and the scenario of a test whose module is known."""
    path = item.path.name
    name = f"{path}::{item.name}"
    if name in SCENARIOS:
        client, scenario = SCENARIOS[name]
        client = node_client() if client == NODE_CLIENT else client
    elif path == TRANSACTIONS:
        client, scenario = f"{JAVA_CLIENT} 5.3.3", _words(item)
    elif item.path.stem in MODULES:
        client, scenario = ", ".join(_version(package) for package in MODULES[item.path.stem]), _words(item)
    else:
        return
    item.user_properties += [(CLIENT, client), (SCENARIO, scenario)]


def _words(item: pytest.Item) -> str:
    return getattr(item, "originalname", item.name).removeprefix("test_").replace("_", " ")


class ClientTable:
    """A plugin that collects what every test of the run says about its client, and prints it at the end."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], Counter[str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """One phase of one test; the call counts, and a setup that failed or was skipped."""
        if report.when != "call" and report.outcome == "passed":
            return
        said = dict(report.user_properties)
        if CLIENT in said:
            result = report.outcome
            if report.outcome == "skipped" and isinstance(report.longrepr, tuple):
                result = f"skipped: {report.longrepr[2].removeprefix('Skipped: ')}"
            key = (str(said[CLIENT]), str(said.get(SCENARIO, "")))
            self._rows.setdefault(key, Counter())[result] += 1

    def lines(self) -> list[str]:
        """The table: client and version, scenario, result; how many tests where it is not one."""
        made = []
        wide = max((len(scenario) for _, scenario in self._rows), default=0)
        last = ""
        for (client, scenario), results in sorted(self._rows.items()):
            if client != last:
                made.append(client)
                last = client
            said = "; ".join(result if count == 1 else f"{result} ({count})" for result, count in results.items())
            made.append(f"  {scenario:{wide}}  {said}")
        return made

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """At the end of the run."""
        lines = self.lines()
        if lines:
            terminalreporter.section("foreign clients: version, scenario, result")
            terminalreporter.write_line("\n".join(lines))
