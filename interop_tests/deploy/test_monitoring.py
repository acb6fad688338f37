"""Every metric and label of the rules and of the dashboard is one that a running server exports, or that the page of metrics names."""

from __future__ import annotations

import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gantrymq.client import Admin, Producer, PullConsumer
from interop_tests.deploy.files import DEPLOY, ROOT, read_json, read_yaml
from interop_tests.running import Gantry
from interop_tests.waiting import until

METRIC = re.compile(r"\b(?:gantry|rocketmq|process|cluster|cluster_group|instance)(?:_|:)[a-z0-9_:]+\b")
SELECTOR = re.compile(r"([a-z_:0-9]+)\{([^}]*)\}")
BY = re.compile(r"\b(?:by|on|without|ignoring) \(([^)]*)\)")
SHOWN = re.compile(r"\$labels\.(\w+)|\{\{(\w+)\}\}")
OF_PROMETHEUS = {"job", "instance", "le"}
"""Labels that the scraper adds, and that histograms have."""
PAGE = (ROOT / "docs" / "operations" / "metrics.md", ROOT / "docs" / "operations" / "retention.md")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, set[str]]]:
    """Name of each sample to its labels, of a server that was used by a group which is behind."""
    server = Gantry(tmp_path_factory.mktemp("monitoring")).start()
    try:
        anyio.run(use, server.doors["nameserver"])
        address = f"http://{server.doors['metrics']}/metrics"
        found: dict[str, set[str]] = {}

        def scraped() -> bool:
            with urllib.request.urlopen(address, timeout=30) as answer:
                text = answer.read().decode()
            for family in text_string_to_metric_families(text):
                end = {"counter": "_total", "histogram": "_bucket"}.get(family.type, "")
                found.setdefault(family.name + end, set())
                for sample in family.samples:
                    found.setdefault(sample.name, set()).update(sample.labels)
            late = ("rocketmq_consumer_lag_messages", "rocketmq_messages_in_total", "rocketmq_messages_out_total")
            return all(found.get(name) for name in late)

        until(scraped)
        yield found
    finally:
        server.stop()


async def use(nameserver: str) -> None:
    async with Admin(nameserver) as admin:
        await admin.create_topic("orders")
    async with Producer(nameserver) as producer, PullConsumer(nameserver, group="behind") as consumer:
        await producer.send("orders", b"1")
        for queue in await consumer.assign("orders"):
            await consumer.seek(queue, "earliest")
        await consumer.pull(1, 30)
        await consumer.commit()
        for _ in range(8):
            await producer.send("orders", b"2")


def documented() -> dict[str, set[str]]:
    """Names in the pages' tables, with the labels beside them."""
    found: dict[str, set[str]] = {}
    for page in PAGE:
        for line in page.read_text(encoding="utf-8").splitlines():
            if line.startswith("|"):
                for name, labels in re.findall(r"`((?:gantry|rocketmq)_\w+)(?:\{([^}]*)\})?`", line):
                    found.setdefault(name, set()).update(part.strip() for part in labels.split(",") if part)
    return found


def expressions() -> list[tuple[str, str, str]]:
    """(place, expression, texts that show its labels) of the rules and the dashboard."""
    found = []
    for group in read_yaml("gantry-rules.yml")["groups"]:
        for rule in group["rules"]:
            texts = " ".join(rule.get("annotations", {}).values())
            found.append((rule.get("alert") or rule["record"], rule["expr"], texts))
    for panel in read_json("grafana-dashboard.json")["panels"]:
        found += [(panel["title"], target["expr"], target["legendFormat"]) for target in panel.get("targets", ())]
    return found


def records() -> dict[str, set[str]]:
    """Names of the recording rules to the labels that they keep."""
    rules = [rule for group in read_yaml("gantry-rules.yml")["groups"] for rule in group["rules"] if "record" in rule]
    return {rule["record"]: {part.strip() for part in BY.search(rule["expr"])[1].split(",")} - {"le"} for rule in rules}  # type: ignore[index]


def test_names_and_labels_exist(exported: dict[str, set[str]]) -> None:
    known = documented()
    for name, labels in (exported | records()).items():
        known[name] = known.get(name, set()) | labels
    looked_at = 0
    for place, expression, texts in expressions():
        names = set(METRIC.findall(re.sub(r"\{[^}]*\}", "", BY.sub("", expression))))
        missing = {name for name in names if name not in known}
        assert not missing, f"{place}: nobody exports {missing}"
        has = set().union(*(known[name] for name in names)) | OF_PROMETHEUS
        for name, selected in SELECTOR.findall(expression):
            wanted = set(re.findall(r"(\w+)\s*[=!]", selected))
            assert wanted <= known.get(name, set()) | OF_PROMETHEUS, f"{place}: {name} has no {wanted}"
        kept = [{part.strip() for part in found.split(",")} for found in BY.findall(expression)]
        for labels in kept:
            assert labels <= has, f"{place}: no metric has {labels - has}"
        shown = {first or second for first, second in SHOWN.findall(texts)}
        left = (set().union(*kept) if kept else has) - {"le"}
        assert shown <= left, f"{place}: {shown - left} is not a label of the result"
        looked_at += len(names)
    assert looked_at > 50


def test_a_name_that_nobody_exports_is_found(exported: dict[str, set[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    for expression, texts in (
        ("rate(gantry_put_messages[1m])", ""),
        ("gantry_log_bytes{node_id='a'}", ""),
        ("sum by (topic) (gantry_log_bytes)", ""),
        ("sum by (limit) (gantry_busy_total)", "{{ $labels.node_id }}"),
    ):
        monkeypatch.setitem(globals(), "expressions", lambda: [("here", expression, texts)])  # noqa: B023
        with pytest.raises(AssertionError, match=r"^here: "):
            test_names_and_labels_exist(exported)


def test_every_alert_says_what_to_do() -> None:
    alerts = [rule for group in read_yaml("gantry-rules.yml")["groups"] for rule in group["rules"] if "alert" in rule]
    assert len(alerts) > 10
    for alert in alerts:
        assert alert["labels"]["severity"] in ("critical", "warning")
        assert alert["annotations"]["summary"]
        assert alert["annotations"]["description"].endswith(".")


def test_panels_do_not_lie_on_each_other() -> None:
    panels: list[dict[str, Any]] = read_json("grafana-dashboard.json")["panels"]
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in panels}) == len(panels)


PROMTOOL = shutil.which("promtool")


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (Debian: apt install prometheus)")
def test_promtool_takes_the_rules(tmp_path: Path) -> None:
    assert PROMTOOL is not None
    done = subprocess.run(
        [PROMTOOL, "check", "rules", str(DEPLOY / "gantry-rules.yml")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    scrape = tmp_path / "prometheus.yml"
    scrape.write_text(
        (DEPLOY / "prometheus.yml")
        .read_text(encoding="utf-8")
        .replace("gantry-rules.yml", str(DEPLOY / "gantry-rules.yml"))
    )
    done = subprocess.run([PROMTOOL, "check", "config", str(scrape)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
