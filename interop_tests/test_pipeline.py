"""The project that `gantry pipeline init` of an installed wheel writes: its own tests, the run without a server, and on a server's topics."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from collections import Counter
from pathlib import Path

import pytest

from gantrymq.client import BlockingAdmin, BlockingProducer, BlockingPullConsumer, OutMessage
from interop_tests import guard
from interop_tests.cloudevents_sinks import assigned
from interop_tests.running import Gantry

pytest.importorskip("pyspark")
pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1500)]
ROOT = Path(__file__).resolve().parents[1]
WORD_S = 600
"""A word takes one to two minutes where nothing else runs."""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a fresh environment with the built wheel; Spark and what else the wheel needs are this environment's."""
    builders = pytest.importorskip("hatchling.builders.wheel")
    folder = tmp_path_factory.mktemp("installed")
    (wheel,) = builders.WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    subprocess.run([sys.executable, "-m", "venv", folder / "env"], check=True)
    found = folder / "env" / "bin" / "python"
    install = [
        found,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--no-index",
        wheel,
    ]
    subprocess.run(install, check=True)
    (packages,) = (folder / "env" / "lib").glob("python*/site-packages")
    (packages / "beside.pth").write_text(sysconfig.get_path("purelib"))
    where = subprocess.run(
        [found, "-c", "import gantrymq; print(gantrymq.__file__)"], stdout=subprocess.PIPE, text=True
    )
    assert where.stdout.startswith(str(packages))
    return found


@pytest.fixture
def project(python: Path, tmp_path: Path) -> Path:
    subprocess.run([python.parent / "gantry", "pipeline", "init", "fleet", "--dir", tmp_path], check=True)
    (tmp_path / "fleet" / ".python").write_text(str(python))
    return tmp_path / "fleet"


def word(project: Path, *words: str) -> str:
    """What `./run WORDS` prints; it must end well."""
    python = (project / ".python").read_text()
    # SPARK_TESTING: Spark Connect, which declarative pipelines speak, listens on any free port.
    environment = {
        **os.environ, "PYTHON": python, "TMPDIR": str(project.parent), "SPARK_TESTING": "1", **guard.mark()
    }  # fmt: skip
    command = [str(project / "run"), *words]
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=WORD_S
    )
    assert done.returncode == 0, done.stdout[-5000:]
    return done.stdout


def sample(project: Path) -> list[bytes]:
    lines = (project / "data" / "sample.jsonl").read_text().splitlines()
    return [json.loads(line)["body"].encode() for line in lines]


def rows_of(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for path in folder.glob("part-*.json") for line in path.read_text().splitlines()]


def check_progress(project: Path, messages: int) -> None:
    lines = [json.loads(line) for line in (project / "out" / "progress.jsonl").read_text().splitlines()]
    counts: Counter[str] = Counter()
    for line in lines:
        counts[line["query"]] += line["rows"]
    assert counts == {"windows": messages, "alerts": messages, "rejected": messages}
    assert sum(line["late"] for line in lines) == 0
    assert (project / "out" / "dashboard.html").read_text().count("<polyline") >= 6


def test_its_own_tests_pass(project: Path) -> None:
    assert "OK" in word(project, "test").splitlines()[-1]


def test_the_run_without_a_server(project: Path) -> None:
    text = word(project, "local")
    assert f"Replaying {len(sample(project))} recorded messages" in text
    assert "not the JSON of a reading" in text
    rejected = rows_of(project / "out" / "telemetry-rejected")
    assert len(rejected) == 5
    alerts = [json.loads(str(row["body"])) for row in rows_of(project / "out" / "alerts")]
    assert {row["device"] for row in alerts} >= {"cpu0", "cpu1"}
    assert all(row["highest"] > row["alarm_above"] for row in alerts)
    assert list((project / "out" / "windows").glob("day=*/*.parquet"))
    check_progress(project, len(sample(project)))


def received(nameserver: str, topic: str) -> list[bytes]:
    with BlockingPullConsumer(nameserver, group="check") as consumer:
        assigned(consumer, topic)
        bodies = []
        while batch := consumer.pull(wait_s=2):
            bodies += [message.body for message in batch]
        return bodies


def filled(project: Path, server: Gantry) -> tuple[str, int]:
    """The sample sent to a server, which the project's settings name; nameserver and messages."""
    nameserver = server.doors["nameserver"]
    bodies = sample(project)
    with BlockingAdmin(nameserver) as admin:
        for topic in ("telemetry", "alerts", "telemetry-rejected"):
            admin.create_topic(topic, queues=2)
    with BlockingProducer(nameserver) as producer:
        producer.send_many([OutMessage("telemetry", text) for text in bodies])
    settings = project / "settings.toml"
    settings.write_text(settings.read_text().replace("127.0.0.1:9876", nameserver))
    return nameserver, len(bodies)


def test_on_a_servers_topics(project: Path, own_server: Gantry) -> None:
    nameserver, count = filled(project, own_server)
    word(project, "stream", "--once")
    check_progress(project, count)
    alerts = received(nameserver, "alerts")
    assert len(received(nameserver, "telemetry-rejected")) == 5
    assert len(set(alerts)) == len(alerts) > 10
    word(project, "submit", "--master", "local[2]", "--", "--once")  # goes on where it was: nothing is written again
    assert sorted(received(nameserver, "alerts")) == sorted(alerts)


def table(folder: Path) -> list[dict[str, object]]:
    """The rows of a Parquet table, in an order of their own; the day is a folder or a column."""
    dataset = pytest.importorskip("pyarrow.dataset")
    days = dataset.partitioning(flavor="hive") if list(folder.glob("day=*")) else None
    rows = dataset.dataset([str(path) for path in folder.rglob("part-*.parquet")], partitioning=days).to_table()
    found: list[dict[str, object]] = [{**row, "day": str(row["day"])} for row in rows.to_pylist()]
    return sorted(found, key=lambda row: (row["device"], row["metric"], row["start"]))


def test_the_declarative_pipeline_writes_what_the_submitted_one_does(project: Path, own_server: Gantry) -> None:
    """`./run declared` to its end, and once more, which goes on where it was."""
    for package in ("grpc", "grpc_status", "yaml", "zstandard"):
        pytest.importorskip(package, reason=f"gantrymq[pipelines] is not installed: there is no {package}")
    nameserver, count = filled(project, own_server)
    word(project, "submit", "--master", "local[2]", "--", "--once")
    check_progress(project, count)
    settings = project / "settings.toml"
    text = settings.read_text()
    with BlockingAdmin(nameserver) as admin:
        for topic in ("alerts", "telemetry-rejected"):
            admin.create_topic(f"declared-{topic}", queues=2)
            text = text.replace(f'"{topic}"', f'"declared-{topic}"')
    settings.write_text(text)
    for _ in range(2):
        assert "Run is COMPLETED" in word(project, "declared")
        windows = table(project / "out" / "declared" / "tables" / "windows")
        assert len(windows) > 50
        assert windows == table(project / "out" / "windows")
        for topic, least in (("alerts", 10), ("telemetry-rejected", 5)):
            submitted = received(nameserver, topic)
            assert len(submitted) >= least
            assert sorted(received(nameserver, f"declared-{topic}")) == sorted(submitted)
