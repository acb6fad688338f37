"""Where the files are, and what of them several tests read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "docs" / "operations" / "deploy"
COMPOSE_FILES = ("compose.yaml", "compose.cluster.yaml")


def read_yaml(name: str) -> Any:
    """A file of the folder; merge keys and anchors are resolved as Compose does."""
    return yaml.safe_load((DEPLOY / name).read_text(encoding="utf-8"))


def read_json(name: str) -> Any:
    return json.loads((DEPLOY / name).read_text(encoding="utf-8"))
