"""Policies as the commands show them."""

from __future__ import annotations

import json
import sys
from typing import Any

from gantrymq.cli.screen import CONSOLE, listing, plain


def as_typed(text: str) -> str:
    """`user:NAME`, `topic:NAME`: RocketMQ writes the first word with a capital."""
    word, colon, name = text.partition(":")
    return f"{word.lower()}{colon}{name}"


def only(subject: str, policies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of this subject; a name is exact."""
    return [each for each in policies if as_typed(each["subject"]) == as_typed(subject)]


def show_policies(policies: list[dict[str, Any]], json_: bool, nothing: str = "there is no such policy") -> None:
    """A line per rule; `nothing` where there is none."""
    cells = []
    for policy in policies:
        for group in policy.get("policies") or ():
            for entry in group.get("entries") or ():
                entry["resource"] = as_typed(entry["resource"])
                if json_:
                    row = {"subject": as_typed(policy["subject"]), **entry}
                    sys.stdout.write(json.dumps(row, ensure_ascii=False) + "\n")
                actions, sources = ",".join(entry["actions"]).lower(), ", ".join(entry.get("sourceIps") or ())
                cells.append(
                    (
                        plain(as_typed(policy["subject"])),
                        entry["decision"].lower(),
                        actions,
                        plain(entry["resource"]),
                        plain(sources),
                    )
                )
    if not json_:
        heads = ("subject", "", "actions", "resource", "from")
        CONSOLE.print(listing(heads, cells) if cells else nothing)
