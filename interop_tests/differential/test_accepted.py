"""The accepted differences and the page that lists them."""

from __future__ import annotations

import re
from pathlib import Path

from interop_tests.differential.accepted import ACCEPTED

PAGE = Path(__file__).parents[2] / "docs" / "mapping" / "rocketmq.md"


def test_accepted_differences_are_documented() -> None:
    page = re.sub(r"\s+", " ", PAGE.read_text())
    assert not [rule.reason for rule in ACCEPTED if rule.reason not in page]
