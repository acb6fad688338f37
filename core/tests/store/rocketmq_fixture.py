"""The store that a real RocketMQ 5.3.3 wrote (interop_tests/rocketmq_store/make_fixture.sh), and what its own decoder reads there."""

from __future__ import annotations

import base64
import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

from gantrymq.model.message import Message
from gantrymq.net.testing import ManualClock
from gantrymq.store.config import StoreConfig
from gantrymq.store.files import OsFileSystem
from gantrymq.store.message_store import MessageStore

ARCHIVE = Path(__file__).parent / "fixtures" / "rocketmq-5.3.3.tar.xz"
STATES = ("clean", "killed")

SAFELY: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
"""Python 3.11 has it from 3.11.4 on (Debian 12 has 3.11.2)."""


def unpack(state: str, target: Path) -> list[dict[str, Any]]:
    """Put the store under `target` and return its records as RocketMQ reads them, in log order."""
    with tarfile.open(ARCHIVE) as archive:
        for member in archive.getmembers():
            name = member.name.removeprefix("./")
            if name.startswith(state + "/"):
                member.name = name.removeprefix(state + "/")
                archive.extract(member, target, **SAFELY)
            elif name == f"{state}.jsonl":
                file = archive.extractfile(member)
                assert file is not None
                rows = [json.loads(line) for line in file]
    for row in rows:
        row["body"] = base64.b64decode(row["body"])
        row["propertiesString"] = row["properties"].pop("propertiesString", "")
    return rows


def with_large_segments(root: Path) -> None:
    """A directory like a real broker's, with segments that hold large bodies: one message, a configuration, and nothing of ours."""
    store = MessageStore(OsFileSystem(), root, StoreConfig(), ManualClock())
    store.load()
    store.append([Message("Plain", b"theirs", queue_id=0)], [()])
    store.close()
    shutil.rmtree(root / "gantry")
    topic = {"topicName": "Plain", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}
    (root / "store" / "config").mkdir(parents=True, exist_ok=True)
    (root / "store" / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": {"Plain": topic}}))
