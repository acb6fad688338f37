"""Readers and writers in a Python that lacks the package, or has another version of it: an error that says where, what and what to do."""

import os
import pickle
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from core.tests.client.fake_cluster import FakeCluster
from gantrymq import __version__

pytest.importorskip("pyspark")
from pyspark import cloudpickle
from pyspark.sql.types import BinaryType, StructField, StructType

from gantrymq.spark.source import GantryDataSource, GantryReader, GantryStreamReader

FIX = f"pip install 'gantrymq[spark]=={__version__}'"
SCHEMA = StructType([StructField("body", BinaryType())])
LOAD = "import pickle, sys; pickle.load(sys.stdin.buffer)"


def bare(content: bytes, *beside: Path) -> str:
    """What a Python says, with the installed packages but without this checkout, that opens `content`."""
    paths = os.pathsep.join([*map(str, beside), sysconfig.get_path("purelib")])
    done = subprocess.run(
        [sys.executable, "-S", "-c", LOAD], input=content, capture_output=True, cwd="/", env={"PYTHONPATH": paths}
    )
    assert done.returncode
    return done.stderr.decode().splitlines()[-1]


@pytest.fixture
def reader() -> GantryReader:
    return GantryDataSource({"topic": "t", "tags": "hot"}).reader(SCHEMA)


def test_here_it_is_what_it_was(reader: GantryReader) -> None:
    made: Any = pickle.loads(cloudpickle.dumps(reader))
    assert (type(made), vars(made)) == (GantryReader, vars(reader))


def test_what_stays_on_the_driver_is_not_carried() -> None:
    stream = GantryDataSource({"topic": "t"}).streamReader(SCHEMA)
    assert stream._plan is stream._plan
    made: Any = pickle.loads(cloudpickle.dumps(stream))
    assert (type(made), made._planner, made._options) == (GantryStreamReader, None, stream._options)


def test_a_python_without_the_package(reader: GantryReader, cluster: FakeCluster) -> None:
    writer = GantryDataSource({"topic": "t", "nameserver": cluster.nameserver}).writer(SCHEMA, False)
    for carried in (reader, writer):
        text = bare(cloudpickle.dumps(carried))
        assert text.startswith("ImportError: the executor on ")
        assert "does not have the package gantrymq: No module named 'gantrymq'" in text
        assert sys.executable in text
        assert FIX in text


def test_a_python_with_another_version(reader: GantryReader, tmp_path: Path) -> None:
    (tmp_path / "gantrymq").mkdir()
    (tmp_path / "gantrymq" / "__init__.py").write_text('__version__ = "0.0.7"\n')
    text = bare(cloudpickle.dumps(reader), tmp_path)
    assert f"has gantrymq 0.0.7, the driver {__version__}; install the driver's there: {FIX}" in text


def test_a_python_with_part_of_it(reader: GantryReader, tmp_path: Path) -> None:
    """As a zip of `--py-files` from which modules were left out."""
    (tmp_path / "gantrymq").mkdir()
    (tmp_path / "gantrymq" / "__init__.py").write_text(f'__version__ = "{__version__}"\n')
    text = bare(cloudpickle.dumps(reader), tmp_path)
    assert f"lacks what gantrymq {__version__} needs for Spark: No module named 'gantrymq.spark'" in text
