"""`gantry topic prune` over several brokers, whose answers are those of real ones without sockets between."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import anyio
import pytest

from gantrymq.broker.topics import TopicConfig
from gantrymq.cli.commands.pruning import do_prune
from gantrymq.client import tools
from tests.remoting.bench import Bench
from tests.remoting.server.overview.test_unused_topics import make, prune, send


@pytest.fixture
def benches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    found = {name: Bench(tmp_path / name) for name in ("a", "b")}

    async def masters(admin: Any) -> dict[str, str]:
        return {name: name for name in found}

    async def ask(admin: Any, address: str, older_ms: int, remove: Iterable[str] | None = None) -> dict[str, Any]:
        return prune(found[address], *(remove or ()), older_ms=older_ms)

    monkeypatch.setattr(tools, "masters", masters)
    monkeypatch.setattr(tools, "prune_topics", ask)
    yield found
    for bench in found.values():
        bench.close()


def test_a_topic_that_somebody_created_at_one_broker_stays_at_all(
    benches: dict[str, Bench], capsys: pytest.CaptureFixture[str]
) -> None:
    make(benches["a"], "created")
    make(benches["a"], "nobodys")
    benches["b"].broker.topics.create(TopicConfig("created", 4, 4))
    send(benches["b"], "created", 1)
    anyio.run(do_prune, None, 0, False, True, True)
    assert [json.loads(line)["topic"] for line in capsys.readouterr().out.splitlines()] == ["nobodys"]
    assert benches["a"].broker.topics.get("created") is not None
    assert benches["a"].broker.topics.get("nobodys") is None
