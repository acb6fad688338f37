"""Log lines: objects, fields, and what nobody should see."""

from __future__ import annotations

import ast
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gantrymq.logs import JsonFormatter, TextFormatter, masked

SHOW = """
import logging, sys
from gantrymq.logs import complain, set_up_logging
set_up_logging(sys.argv[1], sys.argv[2])
log = logging.getLogger("gantrymq.x")
log.debug("unseen")
log.info("%s: %s", "1.2.3.4:5", "line one\\nline two", extra={"peer": "1.2.3.4:5", "password": "hunter2", "size": 3})
try:
    raise ValueError("token=abc")
except ValueError:
    log.exception("failed")
complain("port\\nin use, secret=xyz")
"""


def shown(level: str, form: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", SHOW, level, form], capture_output=True, text=True, check=True, timeout=150
    )
    return done.stderr.splitlines()


def test_json_is_one_object_per_line() -> None:
    first, second, third = (json.loads(line) for line in shown("info", "json"))
    assert first["level"] == "info"
    assert first["logger"] == "gantrymq.x"
    assert first["message"] == "1.2.3.4:5: line one\nline two"
    assert first["fields"] == {"peer": "1.2.3.4:5", "password": "***", "size": 3}
    assert first["time"][10] == "T"
    assert "token=***" in second["exception"]
    assert "abc" not in second["exception"]
    assert third["message"] == "port in use, secret=***"


def test_text_and_levels() -> None:
    lines = shown("error", "text")
    assert "ERROR gantrymq.x: failed" in lines[0]
    assert lines[-1].startswith("gantry: port in use")
    assert not any("line one" in line for line in lines)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("password=hunter2, user=x", "password=***, user=x"),
        ('{"secretKey": "abc def"}', '{"secretKey": ***}'),
        ("Authorization: Bearer abc.def", "Authorization: ***"),
        ("accessKey=AK signature=S", "accessKey=*** signature=***"),
        ("topic tokens has 3 queues", "topic tokens has 3 queues"),
        ("no secrets here", "no secrets here"),
    ],
)
def test_secrets_are_masked(text: str, kept: str) -> None:
    assert masked(text) == kept
    record = logging.LogRecord("a", logging.INFO, "", 0, "%s", (text,), None)
    assert kept in TextFormatter().format(record)
    assert json.loads(JsonFormatter().format(record))["message"] == kept


ROOT = Path(__file__).parents[2]


def sentences(path: Path) -> Iterator[str]:
    """Texts of a module that are no docstrings; what is put into them is an X."""
    tree = ast.parse(path.read_text("utf-8"))
    statements = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join([str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values])
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in statements:
            yield node.value


def test_no_sentence_of_ours_loses_a_word_to_masking() -> None:
    """`password: give --password-file` would be read as a password `give`: no colon there."""
    assert list(sentences(Path(__file__))), "there are texts"
    found = [
        f"{path.relative_to(ROOT)}: {text}"
        for folder in ("core/gantrymq", "gateways/gantrymq_gateways", "nameserver/gantrymq_nameserver")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for text in sentences(path)
        if masked(text) != text
    ]
    assert found == []
