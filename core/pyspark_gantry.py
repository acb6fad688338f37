"""Makes spark.read.format("gantry") known: Spark looks for modules named pyspark_* and their `DefaultSource`.

Imports nothing until that is asked for, and never raises but AttributeError: one such module that fails would hide all others.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name == "DefaultSource":
        try:
            from gantrymq.spark.source import GantryDataSource
        except ImportError as error:
            text = f"the gantry data source cannot be used here: {error}; pip install 'gantrymq[spark]'"
            raise AttributeError(text) from error
        return GantryDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
