"""What the doctor finds, each illness made by hand."""

import sys
from pathlib import Path
from typing import Any

import pytest

from core.tests.client.fake_cluster import FakeCluster
from gantrymq.spark.local import doctor
from gantrymq.spark.local.doctor import Finding

pytest.importorskip("pyspark")


def examine(
    cluster: FakeCluster | None = None, topic: str = "", spark: Any = None, **environ: str
) -> dict[str, Finding]:
    """Findings by what was looked at; the environment is that of `gantrymq.spark.session()`, but for `environ`."""
    lines: list[str] = []
    nameserver = cluster.nameserver if cluster is not None else "127.0.0.1:1"
    given = {"PYSPARK_PYTHON": sys.executable, "PATH": "/usr/bin:/bin", **environ}
    bad = doctor.doctor(spark, nameserver, topic, given, lines.append)
    assert len(bad) == sum(line.startswith("BAD") for line in lines)
    return {finding.what: finding for finding in bad}


def program(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return str(path)


@pytest.fixture(autouse=True)
def _brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "PATIENCE_S", 0.5)


@pytest.fixture
def java(tmp_path: Path) -> str:
    program(tmp_path / "java21" / "bin" / "java", "echo 'openjdk version \"21.0.1\"' >&2")
    return str(tmp_path / "java21")


def test_all_is_well(cluster: FakeCluster, java: str) -> None:
    assert examine(cluster, "telemetry", JAVA_HOME=java) == {}


def test_old_java(cluster: FakeCluster, tmp_path: Path) -> None:
    program(tmp_path / "bin" / "java", "echo 'openjdk version \"11.0.1\"' >&2")
    found = examine(cluster, JAVA_HOME=str(tmp_path))["Java"]
    assert "JAVA_HOME=" in found.fix or "Spark needs Java 17 or newer" in found.text


def test_workers_without_the_packages(cluster: FakeCluster, java: str, tmp_path: Path) -> None:
    bare = program(tmp_path / "python", """echo '{"python": "3.11", "pyspark": "4.3.0"}'\n""")
    found = examine(cluster, JAVA_HOME=java, PYSPARK_PYTHON=bare)["Python of the workers"]
    assert "has no gantrymq, pyarrow, numpy" in found.text
    assert f"set PYSPARK_PYTHON={sys.executable}" in found.fix
    gone = examine(cluster, JAVA_HOME=java, PYSPARK_PYTHON="/nowhere/python")["Python of the workers"]
    assert "cannot be found" in gone.text
    broken = program(tmp_path / "broken", "exit 3")
    assert "does not run" in examine(cluster, JAVA_HOME=java, PYSPARK_PYTHON=broken)["Python of the workers"].text


def test_another_python(cluster: FakeCluster, java: str, tmp_path: Path) -> None:
    text = '{"python": "3.9", "gantrymq": "1", "pyspark": "4", "pyarrow": "1", "numpy": "1"}'
    other = program(tmp_path / "python", f"echo '{text}'\n")
    found = examine(cluster, JAVA_HOME=java, PYSPARK_PYTHON=other)["Python of the workers"]
    assert "has python 3.9, the driver" in found.text


def test_the_python_of_sources_and_sinks_is_the_drivers_where_that_is_set(
    cluster: FakeCluster, java: str, tmp_path: Path
) -> None:
    """As with a notebook: PYSPARK_DRIVER_PYTHON=jupyter."""
    jupyter = program(tmp_path / "jupyter", "echo 'Jupyter command `jupyter--c` not found.' >&2; exit 1\n")
    found = examine(cluster, JAVA_HOME=java, PYSPARK_DRIVER_PYTHON=jupyter)
    assert found.keys() == {"Python of sources and sinks"}
    finding = found["Python of sources and sinks"]
    assert f"{jupyter} (PYSPARK_DRIVER_PYTHON) does not run" in finding.text
    assert finding.fix == f"set PYSPARK_DRIVER_PYTHON={sys.executable}"
    assert examine(cluster, JAVA_HOME=java, PYSPARK_DRIVER_PYTHON=sys.executable) == {}


def test_a_python_for_the_driver_alone_leaves_the_workers_to_the_path(
    cluster: FakeCluster, java: str, tmp_path: Path
) -> None:
    program(tmp_path / "bin" / "python3", """echo '{"python": "3.11", "pyspark": "4.3.0"}'\n""")
    given = {"PYSPARK_PYTHON": "", "PYSPARK_DRIVER_PYTHON": sys.executable, "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"}
    found = examine(cluster, JAVA_HOME=java, **given)
    assert found.keys() == {"Python of the workers"}
    assert "python3 (from PATH, as PYSPARK_PYTHON is not set) has no gantrymq" in found["Python of the workers"].text
    assert "or begin with gantrymq.spark.session()" in found["Python of the workers"].fix


def test_a_module_that_hides_all_formats(
    cluster: FakeCluster, java: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyspark_broken.py").write_text("raise RuntimeError('no key')")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = examine(cluster, JAVA_HOME=java)["format gantry"]
    assert "cannot import pyspark_broken: RuntimeError: no key" in found.text


def test_servers_that_cannot_be_reached(cluster: FakeCluster, java: str) -> None:
    assert "127.0.0.1:1 cannot be reached" in examine(None, JAVA_HOME=java)["nameserver"].text
    assert "nothing" in examine(cluster, "nothing", JAVA_HOME=java)["topic nothing"].text
    cluster.stop("broker-a")
    found = examine(cluster, JAVA_HOME=java)["broker broker-a"]
    assert "cannot be reached" in found.text
    assert "that driver and executors reach" in found.fix


@pytest.mark.spark
@pytest.mark.timeout(400)
@pytest.mark.filterwarnings("ignore")
def test_executors(spark: Any, cluster: FakeCluster, java: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert examine(cluster, "telemetry", spark, JAVA_HOME=java) == {}
    monkeypatch.setattr(doctor, "_versions", lambda: dict.fromkeys(("python", "pandas", *doctor._PACKAGES), "0"))
    found = examine(cluster, spark=spark, JAVA_HOME=java)
    assert "the driver 0" in found["executors"].text
    assert "pyspark 0" in found["Spark of the session"].text
