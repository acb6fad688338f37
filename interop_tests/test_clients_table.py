"""The table of foreign clients: what reports become."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from interop_tests.clients import ClientTable


def report(
    client: str,
    scenario: str,
    outcome: Literal["passed", "failed", "skipped"] = "passed",
    when: Literal["setup", "call", "teardown"] = "call",
    why: Any = None,
) -> pytest.TestReport:
    said: list[tuple[str, object]] = [("client", client), ("scenario", scenario)] if client else []
    return pytest.TestReport("id", ("file", 1, "name"), {}, outcome, why, when, user_properties=said)


def test_rows_are_sorted_counted_and_say_why() -> None:
    table = ClientTable()
    for one in (
        report("pika 1.3", "publish"),
        report("pika 1.3", "publish"),
        report("pika 1.3", "confirm", "failed"),
        report("pika 1.3", "confirm", when="teardown"),
        report("java 5", "pop", "skipped", "setup", ("file", 1, "Skipped: no Java")),
        report("java 5", "push", "failed", "setup"),
        report("", "a test of our own"),
    ):
        table.pytest_runtest_logreport(one)
    assert table.lines() == [
        "java 5",
        "  pop      skipped: no Java",
        "  push     failed",
        "pika 1.3",
        "  confirm  failed",
        "  publish  passed (2)",
    ]


def test_a_run_without_foreign_clients_has_no_table() -> None:
    assert ClientTable().lines() == []
