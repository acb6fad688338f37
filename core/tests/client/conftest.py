"""A running server for the client's tests, started once per run, and topics that nobody else uses."""

from collections.abc import Iterator

import pytest

from interop_tests.patience import lend
from interop_tests.running import Gantry


@pytest.fixture(scope="session")
def gantry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gantry]:
    """`gantry up`; tests share it and must not kill it."""
    server = Gantry(tmp_path_factory.mktemp("gantry"))
    try:
        yield server.start()
    finally:
        server.stop()


@pytest.fixture
def nameserver(gantry: Gantry) -> Iterator[str]:
    """Where clients find it; whoever asks it waits longer than a client would by itself."""
    with pytest.MonkeyPatch.context() as patch:
        lend(patch)
        yield gantry.doors["nameserver"]


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name for a topic, and with an ending for groups, of this test alone."""
    return request.node.name.replace("test_", "").translate(str.maketrans("[].", "___"))[:80]
