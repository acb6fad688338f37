from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core.tests.client.fake_cluster import FakeCluster
from gantrymq.spark import wire


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    cluster = FakeCluster()
    cluster.topics["telemetry"] = {"broker-a": 2}
    yield cluster
    wire.close_all()
    cluster.close()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One session for all tests that need Spark. It finds the data source by itself: nothing is registered here."""
    pytest.importorskip("pyspark")
    from gantrymq.spark.session import LOCAL_SETTINGS, QUICK_SETTINGS, prepare

    prepare(quick=True)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("gantrymq-tests")
    home: Path = tmp_path_factory.mktemp("spark")
    more = {"spark.sql.shuffle.partitions": "2", "spark.sql.warehouse.dir": str(home), "spark.local.dir": str(home)}
    for key, value in {**LOCAL_SETTINGS, **QUICK_SETTINGS, **more}.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
