"""The store that a real RocketMQ 5.3.3 wrote (interop_tests/rocketmq_store/make_fixture.sh), and what its own decoder reads there."""

from __future__ import annotations

import base64
import json
import tarfile
from pathlib import Path
from typing import Any

ARCHIVE = Path(__file__).parent / "fixtures" / "rocketmq-5.3.3.tar.xz"
STATES = ("clean", "killed")


def unpack(state: str, target: Path) -> list[dict[str, Any]]:
    """Put the store under `target` and return its records as RocketMQ reads them, in log order."""
    with tarfile.open(ARCHIVE) as archive:
        for member in archive.getmembers():
            name = member.name.removeprefix("./")
            if name.startswith(state + "/"):
                member.name = name.removeprefix(state + "/")
                archive.extract(member, target, filter="data")
            elif name == f"{state}.jsonl":
                file = archive.extractfile(member)
                assert file is not None
                rows = [json.loads(line) for line in file]
    for row in rows:
        row["body"] = base64.b64decode(row["body"])
        row["propertiesString"] = row["properties"].pop("propertiesString", "")
    return rows
