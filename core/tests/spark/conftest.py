from collections.abc import Iterator
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
    from gantrymq.spark import session as local_session

    home = str(tmp_path_factory.mktemp("spark"))
    options = f"-Djava.io.tmpdir={home}"  # a JVM that ends leaves folders of artifacts there
    more = {"spark.sql.warehouse.dir": home, "spark.local.dir": home, "spark.driver.extraJavaOptions": options}
    session = local_session("gantrymq-tests", cores=2, settings=more, quick=True)
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
