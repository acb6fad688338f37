"""The settings of settings.toml."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Settings:
    """What settings.toml says; relative paths start where it lies. Times are Spark's intervals: "10 seconds"."""

    name: str
    nameserver: str
    topic: str
    alerts_topic: str
    rejected_topic: str
    devices: str
    output: str
    window: str
    watermark: str
    trigger: str
    partitions: int = 8
    """Parts of the windows' state, so tasks of a batch; as it was at a query's first start."""
    restarts_max: int = 20
    """A query that failed is started again, from its checkpoint, so often."""

    @property
    def tables(self) -> str:
        """The folder of the Parquet table."""
        return f"{self.output}/windows"

    def checkpoint(self, query: str) -> str:
        """The folder of a query's checkpoint: what it has read, and its state."""
        return f"{self.output}/checkpoints/{query}"


def load(path: Path = HERE / "settings.toml") -> Settings:
    """Raises OSError, ValueError (names the file and what is wrong)."""
    try:
        given = tomllib.loads(path.read_text())
        settings = Settings(**given)
        for field in fields(Settings):
            kind = int if field.type == "int" else str
            if type(getattr(settings, field.name)) is not kind:
                raise ValueError(f"{field.name} must be {'a number' if kind is int else 'a text'}")
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from None
    places = {name: str(path.resolve().parent / given[name]) for name in ("devices", "output")}
    return Settings(**given | places)
