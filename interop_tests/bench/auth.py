"""`./run bench auth`: what users, policies and 10,000 rules cost a loaded server, beside one that is open.

usage: bench auth [--rules N] [--messages N] [--rounds N] [--only WORD ...]

Both servers run at once and are measured in turns, row by row. The user of the loads has all rules in one policy; those that it needs stand behind
the others. Figures are processor time of the server's process, microseconds per message, or per connection that comes again: medians of the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import statistics
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from rich.table import Table

from gantrymq.client.accounts import Accounts
from gantrymq.client.admin import Admin
from gantrymq.client.client import Client
from interop_tests.bench.loads import amqp, generator, mqtt
from interop_tests.bench.servers import Server, gantry, wide_console

ADMIN: Final = "root", "the-admins-password"
USER, PASSWORD = "loader", "the-loaders-password"
RULES_AT_ONCE: Final = 1_000
"""Of one request: its frame stays far below a megabyte."""
SHARE_MAX: Final = 1.03
SIGNATURE_US: Final = 8
RECONNECTS: Final = 4_000
RECONNECTS_PER_S: Final = 2_000

Run = Callable[[Server, bool], dict[str, Any]]


def entry(resource: str, *actions: str) -> dict[str, Any]:
    return {"resource": resource, "actions": list(actions), "decision": "Allow"}


def rules(count: int) -> list[dict[str, Any]]:
    """So many of every kind, and those for everything that the loads do."""
    several = (
        ("topic:plant-{}", "pub"),
        ("topic:plant-{}-*", "sub"),
        ("group:readers-{}", "sub"),
        ("mqtt:plant/{}/#", "pub"),
        ("queue:jobs-{}", "create"),
    )
    needed = [
        entry("topic:*", "pub", "sub", "create", "update", "get"), entry("mqtt:#", "pub", "sub"),
        entry("queue:*", "pub", "sub", "create", "update"), entry("group:*", "sub"),
    ]  # fmt: skip
    made = [
        entry(several[number % 5][0].format(number), several[number % 5][1]) for number in range(count - len(needed))
    ]
    return made + needed


async def furnish(server: Server, count: int) -> None:
    """The user and its rules."""
    async with Client(server.doors["nameserver"], *ADMIN) as client:
        accounts = Accounts(Admin(client=client))
        await accounts.create_user(USER, password=PASSWORD)
        every = rules(count)
        for first in range(0, len(every), RULES_AT_ONCE):
            await accounts.add_rules(f"user:{USER}", every[first : first + RULES_AT_ONCE])


def rows(messages: int) -> list[tuple[str, str, Run]]:
    """Name, what is to be reached, what to run on a server that asks who one is, or not."""

    def login(asked: bool) -> list[str]:
        return ["--user", USER, "--password", PASSWORD] if asked else []

    def sends(server: Server, asked: bool) -> dict[str, Any]:
        words = ["--access-key", USER, "--secret-key", PASSWORD] if asked else []
        got = generator(
            "remoting_load.py", server.doors["broker"], "--mix", "real", "--window", "256", "--messages", str(messages), "--block", "40000",
            "--warmup", str(messages // 5), "--server-pid", str(server.pid), *words,
        )  # fmt: skip
        return {"cpu_us": got.get("server_cpu_us_per_msg"), "rate": got.get("sends_per_s"), "raw": got}

    def mqtt_row(mode: str, count: int, *words: str) -> Run:
        return lambda server, asked: mqtt(server, mode, "--count", str(count), *words, *login(asked))

    def amqp_row(*words: str) -> Run:
        return lambda server, asked: amqp("amqp_load.py", server, messages, (*words, *login(asked)))

    share = f"<= {SHARE_MAX:g} x open"
    return [
        ("Remoting send, signed each", f"<= {SIGNATURE_US} us more", sends),
        ("MQTT QoS 1 publish, window 100", share, mqtt_row("pub", messages, "--qos", "1", "--window", "100")),
        ("MQTT 1 to 1, QoS 1", share, mqtt_row("pubsub", messages, "--qos", "1")),
        ("MQTT connect of a known user", f"{RECONNECTS_PER_S:,}/s", mqtt_row("connections", RECONNECTS)),
        ("AMQP confirmed publish, window 100", share, amqp_row("publish", "--window", "100")),
        ("AMQP 1 to 1", share, amqp_row("pubsub")),
    ]  # fmt: skip


def median(found: list[dict[str, Any]], name: str) -> float:
    """Of the rounds; raises SystemExit with what a load said where one failed."""
    failed = next((one["raw"] for one in found if not isinstance(one.get(name), (int, float))), None)
    if failed is not None:
        raise SystemExit(f"a load failed: {failed}")
    return float(statistics.median([one[name] for one in found]))


def main(arguments: list[str]) -> int:
    """The table."""
    parser = argparse.ArgumentParser(
        prog="bench auth", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rules", type=int, default=10_000)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", default=[""], help="cases whose name contains one of these words")
    args = parser.parse_args(arguments)
    console = wide_console()
    directory = Path(tempfile.mkdtemp(prefix="gantry-auth-"))
    table = Table(
        title=f"a server with users and {args.rules:,} rules beside an open one; processor time, microseconds"
    )
    for name in ("case", "open", "with rules", "difference", "ratio", "per second", "to reach"):
        table.add_column(name, justify="left" if name in ("case", "to reach") else "right", no_wrap=True)
    try:
        for name in ("open", "ruled"):
            (directory / name).mkdir()
        admin = directory / "admin"
        admin.write_text(":".join(ADMIN) + "\n")
        admin.chmod(0o600)
        with ExitStack() as stack:
            free = stack.enter_context(gantry(directory / "open", name="open"))
            settings = ("auth.enabled=true", f"auth.admin_file={admin}")
            ruled = stack.enter_context(gantry(directory / "ruled", name="ruled", settings=settings))
            asyncio.run(furnish(ruled, args.rules))
            chosen = [row for row in rows(args.messages) if any(word.lower() in row[0].lower() for word in args.only)]
            for name, reach, run in chosen:
                found: dict[str, list[dict[str, Any]]] = {"open": [], "ruled": []}
                for _ in range(args.rounds):
                    for server in (free, ruled):
                        found[server.name].append(run(server, server is ruled))
                before, after = median(found["open"], "cpu_us"), median(found["ruled"], "cpu_us")
                cells = [f"{before:.2f}", f"{after:.2f}", f"{after - before:+.2f}", f"{after / before:.2f}"]
                table.add_row(name, *cells, f"{median(found['ruled'], 'rate'):,.0f}", reach)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    console.print(table)
    return 0
