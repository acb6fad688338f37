"""The comparison of Spark on gantry and on Kafka: what its table says, and that it is left out, with the reason, where Kafka cannot be had."""

from __future__ import annotations

import argparse
import io
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from interop_tests.bench import spark_peers


def figures(rate: float, cpu: float) -> dict[str, dict[str, float]]:
    return {case: {"rows_per_s": rate, "cpu_s": cpu} for case in spark_peers.CASES}


def test_the_table_has_the_ratios() -> None:
    theirs = figures(400_000, 4.0)
    del theirs["exactly"]  # Kafka's sink has none
    out = io.StringIO()
    Console(file=out, width=200).print(spark_peers.table(figures(500_000, 3.0), theirs, 1000))
    lines = [line for line in out.getvalue().splitlines() if "500,000" in line]
    assert len(lines) == len(spark_peers.CASES)
    assert all("1.25" in line and "0.75" in line for line in lines)


def test_what_is_not_there_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bash = shutil.which("bash")
    assert bash is not None
    (tmp_path / "bash").symlink_to(bash)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("GANTRY_CACHE", str(tmp_path / "cache"))
    parser = argparse.ArgumentParser()
    spark_peers.add_options(parser)
    with pytest.raises(spark_peers.UnavailableError, match="needs java and mvn"):
        spark_peers.compare(Console(file=io.StringIO()), parser.parse_args([]), tmp_path, None)
