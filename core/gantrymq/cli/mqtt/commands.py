"""`gantry mqtt`: who is connected, what is kept, shared groups, retained messages; kick and ban."""

from __future__ import annotations

import json
import re
import time
from importlib.metadata import entry_points
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from gantrymq.broker.port import SHARED_GROUP
from gantrymq.cli import options
from gantrymq.cli.options import Interval, Json, Max, Nameserver, Watch
from gantrymq.launch.exit_codes import EXIT_FAILED, EXIT_USAGE
from gantrymq.logs import complain

mqtt_app = typer.Typer()

FILTERS: Final = "mqtt_filter"
RETAINED: Final = "mqtt_retained"
BANS: Final = "mqtt_ban"
CLIENT_GROUP: Final = "mqtt:"
SHARED: Final = ("$share/", "$queue/")

Client = Annotated[str, typer.Argument(metavar="CLIENT-ID")]
Of = Annotated[str, typer.Option("--client", help="Only of this client id.")]


@mqtt_app.command()
def clients(
    client: Of = "", count: Max = 1_000, json_: Json = False, watch: Watch = False, interval: Interval = 2.0, nameserver: Nameserver = None
) -> None:  # fmt: skip
    """Connected clients of all gateways."""
    options.run(show_clients, nameserver, client=client, count=count, as_json=json_, again=watch, interval=interval)


@mqtt_app.command()
def sessions(
    count: Max = 1_000,
    json_: Json = False,
    watch: Watch = False,
    interval: Interval = 2.0,
    nameserver: Nameserver = None,
) -> None:
    """Sessions that are kept, and what waits in them."""
    options.run(show_sessions, nameserver, count=count, as_json=json_, again=watch, interval=interval)


@mqtt_app.command()
def subscriptions(
    client: Of = "", count: Max = 1_000, json_: Json = False, watch: Watch = False, interval: Interval = 2.0, nameserver: Nameserver = None
) -> None:  # fmt: skip
    """Filters of kept sessions."""
    options.run(
        show_subscriptions, nameserver, client=client, count=count, as_json=json_, again=watch, interval=interval
    )


@mqtt_app.command()
def groups(json_: Json = False, watch: Watch = False, interval: Interval = 2.0, nameserver: Nameserver = None) -> None:
    """Shared subscriptions and how far each is behind."""
    options.run(show_groups, nameserver, as_json=json_, again=watch, interval=interval)


@mqtt_app.command()
def retained(
    text: Annotated[str, typer.Argument(metavar="[FILTER]", help="Only topics that it matches.")] = "",
    count: Max = 1_000, json_: Json = False, watch: Watch = False, interval: Interval = 2.0, nameserver: Nameserver = None,
) -> None:  # fmt: skip
    """Retained messages."""
    options.run(show_retained, nameserver, text=text, count=count, as_json=json_, again=watch, interval=interval)


@mqtt_app.command("import-config")
def import_config(
    file: Annotated[Path, typer.Argument(metavar="MOSQUITTO.CONF", exists=True, dir_okay=False, readable=True)],
    out: Annotated[Path | None, typer.Option("--out", help="Write the settings here; default: show them.")] = None,
    bridges: Annotated[Path, typer.Option("--bridges", help="Where its bridges are written, if it has some.")] = Path(
        "bridges.conf"
    ),
) -> None:
    """Settings for this server from a Mosquitto's, and what could not be mapped (on stderr)."""
    from gantrymq.cli.mqtt.mosquitto import read_mosquitto

    found = read_mosquitto(file.read_text(encoding="utf-8", errors="replace"))
    if found.left and not (found.settings or found.kept or found.bridges):
        complain(
            f"{file}: none of its {len(found.left)} lines is an option of mosquitto.conf that maps; the first: {found.left[0]}"
        )
        raise typer.Exit(EXIT_FAILED)
    if found.bridges:
        bridges.write_text(found.bridges, encoding="utf-8")
        found.settings["mqtt.bridges"] = str(bridges.absolute())
    if out is not None:
        out.write_text(found.toml(), encoding="utf-8")
    else:
        typer.echo(found.toml(), nl=False)
    for title, lines in (("needs nothing here", found.kept), ("NOT mapped", found.left)):
        for line in lines:
            typer.echo(f"{title}: {line}", err=True)


@mqtt_app.command("import-db")
def import_db(
    file: Annotated[Path, typer.Argument(metavar="MOSQUITTO.DB", exists=True, dir_okay=False, readable=True)],
    server: Annotated[str, typer.Option("--server", metavar="HOST:PORT", help="The MQTT door.")] = "127.0.0.1:1883",
    dry: Annotated[bool, typer.Option("--dry-run", help="Read the file only, and say what is in it.")] = False,
) -> None:
    """Retained messages and sessions (subscriptions, queued messages) of a Mosquitto, into a running server, before its clients come."""
    host, _, port = server.rpartition(":")
    if not host or not port.isdecimal():
        complain(f"--server {server}: write HOST:PORT")
        raise typer.Exit(EXIT_USAGE)
    (point,) = entry_points(group="gantrymq.tools", name="mosquitto_db")
    if not point.load()(str(file), host.strip("[]"), int(port), dry, lambda line: typer.echo(line, err=True)):
        raise typer.Exit(EXIT_FAILED)


@mqtt_app.command()
def kick(client: Client, nameserver: Nameserver = None) -> None:
    """End a client's connection; it may come again. Its will is published, its session stays."""
    options.run(do_kick, nameserver, client=client)


@mqtt_app.command()
def ban(
    client: Annotated[str, typer.Option("--client", metavar="ID", help="A client id.")] = "",
    user: Annotated[str, typer.Option("--user", metavar="NAME", help="A user name.")] = "",
    address: Annotated[
        str, typer.Option("--address", metavar="NET", help="An address, or a network such as 10.1.0.0/16.")
    ] = "",
    duration: Annotated[
        str, typer.Option("--for", metavar="TIME", help="Such as 90s, 10m, 6h, 7d; default: until unban.")
    ] = "",
    reason: Annotated[str, typer.Option(help="For the list of bans and the log.")] = "",
    nameserver: Nameserver = None,
) -> None:
    """Let somebody in no more, and end the connections that there are."""
    options.run(do_ban, nameserver, client=client, user=user, address=address, duration=duration, reason=reason)


@mqtt_app.command()
def unban(
    client: Annotated[str, typer.Option("--client", metavar="ID", help="A client id.")] = "",
    user: Annotated[str, typer.Option("--user", metavar="NAME", help="A user name.")] = "",
    address: Annotated[str, typer.Option("--address", metavar="NET", help="As it was banned.")] = "",
    nameserver: Nameserver = None,
) -> None:
    """Take a ban back."""
    options.run(do_unban, nameserver, client=client, user=user, address=address)


@mqtt_app.command()
def bans(json_: Json = False, nameserver: Nameserver = None) -> None:
    """Who is banned."""
    options.run(show_bans, nameserver, as_json=json_)


async def _watched(admin: Any, fetch: Any, again: bool, interval: float, as_json: bool) -> None:
    from gantrymq.cli.mqtt.reach import tables
    from gantrymq.cli.screen import watch

    async with tables(";".join(admin.client.routes.nameservers)) as reach:
        await watch(lambda: fetch(reach), again, interval, as_json)


def _picture(columns: list[str], rows: list[list[str]], nothing: str) -> Any:
    from gantrymq.cli.screen import listing

    return listing(columns, rows) if rows else nothing


async def show_clients(admin: Any, client: str, count: int, as_json: bool, again: bool, interval: float) -> None:
    """A row each."""
    from gantrymq.cli.mqtt.console import ask
    from gantrymq.cli.screen import ago, plain

    async def fetch(reach: Any) -> tuple[list[Any], Any]:
        answers = await ask(reach, {"what": "clients", "client": client})
        rows = [{**row, "gateway": name} for name, answer in answers.items() for row in answer.get("clients", ())]
        rows = sorted(rows, key=lambda row: str(row["client"]))[:count]
        now_ms = time.time_ns() // 1_000_000
        cells = [
            [
                plain(row["client"]),
                plain(row["peer"]),
                f"{row['version']} {'kept' if row['kept'] else 'clean'}",
                ago(row["since_ms"], now_ms),
                str(len(row["filters"])),
                str(row["inflight"]),
            ]
            for row in rows
        ]  # fmt: skip
        head = ["client", "from", "version, session", "since", ">filters", ">in flight"]
        return rows, _picture(head, cells, "nobody is connected")

    await _watched(admin, fetch, again, interval, as_json)


async def _backlog(reach: Any, light: int, group: str) -> int | None:
    """Entries that wait or are in flight; None: there is no such place."""
    from gantrymq.broker.port import FIND
    from gantrymq.model.errors import GantryError

    try:
        info = await reach.ask(reach.port.open_cursor, f"~{light}", group, FIND)
    except GantryError:
        return None
    return int(info.ready + info.unacked)


async def show_sessions(admin: Any, count: int, as_json: bool, again: bool, interval: float) -> None:
    """A row each; what waits is asked of the brokers."""
    from gantrymq.cli.mqtt.console import session_rows
    from gantrymq.cli.screen import ago, number, plain

    async def fetch(reach: Any) -> tuple[list[Any], Any]:
        found = await session_rows(reach)
        now_ms = time.time_ns() // 1_000_000
        rows = []
        for client in sorted(found)[:count]:
            row = found[client]
            lights = {each[1] for text, each in row["s"].items() if not text.startswith(SHARED)}
            waiting = [await _backlog(reach, light, CLIENT_GROUP + client) for light in lights]
            left_ms = row.get("l", 0)
            rows.append(
                {
                    "client": client, "filters": len(row["s"]), "waiting": sum(each or 0 for each in waiting),
                    "left_ms": left_ms, "expiry_s": row.get("x"), "gateway": row.get("g", ""),
                }
            )  # fmt: skip
        cells = [
            [
                plain(row["client"]), str(row["filters"]), number(row["waiting"]),
                f"left {ago(row['left_ms'], now_ms)}" if row["left_ms"] else "connected", row["gateway"],
            ]
            for row in rows
        ]  # fmt: skip
        return rows, _picture(["client", ">filters", ">waiting", "state", "gateway"], cells, "no session is kept")

    await _watched(admin, fetch, again, interval, as_json)


async def show_subscriptions(admin: Any, client: str, count: int, as_json: bool, again: bool, interval: float) -> None:
    """A row per client and filter."""
    from gantrymq.cli.mqtt.console import session_rows
    from gantrymq.cli.screen import plain

    async def fetch(reach: Any) -> tuple[list[Any], Any]:
        found: dict[tuple[str, str], dict[str, Any]] = {}
        for name, row in (await session_rows(reach)).items():
            for text, each in row["s"].items():
                found[name, text] = {"client": name, "filter": text, "qos": each[0] & 3}
        rows = [found[key] for key in sorted(found) if not client or key[0] == client][:count]
        cells = [[plain(row["client"]), plain(row["filter"]), str(row["qos"])] for row in rows]
        return rows, _picture(["client", "filter", ">QoS"], cells, "there are no subscriptions")

    await _watched(admin, fetch, again, interval, as_json)


async def show_groups(admin: Any, as_json: bool, again: bool, interval: float) -> None:
    """A row per shared subscription."""
    from gantrymq.cli.screen import lag_text, plain

    async def fetch(reach: Any) -> tuple[list[Any], Any]:
        rows = []
        for light, value in (await reach.rows(FILTERS)).items():
            text = value.partition(b"\0")[0].decode()
            if text.startswith(SHARED):
                shared, _, rest = text.removeprefix("$queue/").removeprefix("$share/").partition("/")
                group, wanted = (shared, rest) if text.startswith("$share/") else ("", text.removeprefix("$queue/"))
                lag = await _backlog(reach, int(light), SHARED_GROUP)
                rows.append({"group": group, "filter": wanted, "lag": lag, "light": int(light)})
        rows.sort(key=lambda row: (row["group"], row["filter"]))
        cells = [[plain(row["group"] or "-"), plain(row["filter"]), lag_text(row["lag"])] for row in rows]
        return rows, _picture(["group", "filter", ">lag"], cells, "there are no shared subscriptions")

    await _watched(admin, fetch, again, interval, as_json)


def parse_retained(value: bytes) -> dict[str, Any]:
    """Topic, QoS, size and expiry of a row of `mqtt_retained` (docs/mapping/mqtt.md)."""
    end = 3 + int.from_bytes(value[1:3], "big")
    found = {"topic": value[3:end].decode(), "qos": value[0] & 3, "expires_ms": 0}
    if value[0] & 0x80:
        found["expires_ms"] = int.from_bytes(value[end : end + 8], "big")
        end += 12 + int.from_bytes(value[end + 8 : end + 12], "big")
    return found | {"bytes": len(value) - end}


async def show_retained(admin: Any, text: str, count: int, as_json: bool, again: bool, interval: float) -> None:
    """A row per topic."""
    from gantrymq.cli.screen import plain, size, span

    fits = re.compile(_pattern(text)) if text else None

    async def fetch(reach: Any) -> tuple[list[Any], Any]:
        rows = [parse_retained(value) for value in (await reach.rows(RETAINED)).values()]
        rows = [row for row in rows if fits is None or fits.fullmatch(row["topic"])]
        rows = sorted(rows, key=lambda row: str(row["topic"]))[:count]
        now_ms = time.time_ns() // 1_000_000
        cells = [
            [plain(row["topic"]), str(row["qos"]), size(row["bytes"]),
             f"in {span(row['expires_ms'] - now_ms)}" if row["expires_ms"] else "-"] for row in rows
        ]  # fmt: skip
        return rows, _picture(["topic", ">QoS", ">size", "expires"], cells, "nothing is retained")

    await _watched(admin, fetch, again, interval, as_json)


def _pattern(text: str) -> str:
    """A filter as a regular expression of topics (MQTT 4.7); no nested repetition, whatever the filter."""
    levels = [{"+": "[^/]*", "#": ".*"}.get(level, re.escape(level)) for level in text.split("/")]
    pattern = "/".join(levels)
    if text.endswith("/#"):
        pattern = pattern.removesuffix("/.*") + "(/.*)?"
    return pattern if text[:1] not in ("+", "#") else f"(?![$]){pattern}"


async def do_kick(admin: Any, client: str) -> None:
    """At whatever gateway it is."""
    from gantrymq.cli.mqtt.console import ask
    from gantrymq.cli.mqtt.reach import tables
    from gantrymq.cli.screen import CONSOLE, plain
    from gantrymq.model.errors import ErrorCode, GantryError

    async with tables(";".join(admin.client.routes.nameservers)) as reach:
        answers = await ask(reach, {"what": "kick", "client": client})
    if not sum(answer.get("kicked", 0) for answer in answers.values()):
        raise GantryError(ErrorCode.NOT_FOUND, f"client {client} is not connected (see `gantry mqtt clients`)")
    CONSOLE.print(f"kicked {plain(client)}")


def ban_key(client: str, user: str, address: str) -> str:
    """Key of a row of `mqtt_ban`. Raises ConfigError."""
    from gantrymq.model.errors import ConfigError

    given = [(kind, whom) for kind, whom in (("client", client), ("user", user), ("address", address)) if whom]
    if len(given) != 1:
        raise ConfigError("say one of --client, --user and --address")
    kind, whom = given[0]
    if kind == "address":
        try:
            whom = str(ip_network(whom, strict=False))
        except ValueError as error:
            raise ConfigError(f"--address {whom}: {error}") from error
    return f"{kind}:{whom}"


def seconds_of(duration: str) -> int:
    """90s, 10m, 6h, 7d; 0 for no time. Raises ConfigError."""
    from gantrymq.model.errors import ConfigError

    if not duration:
        return 0
    found = re.fullmatch(r"(\d+)([smhd])", duration)
    if found is None or not int(found[1]):
        raise ConfigError(f"--for {duration}: write 90s, 10m, 6h or 7d")
    return int(found[1]) * {"s": 1, "m": 60, "h": 3_600, "d": 86_400}[found[2]]


async def do_ban(admin: Any, client: str, user: str, address: str, duration: str, reason: str) -> None:
    """One row; the gateways watch them."""
    from gantrymq.cli.mqtt.console import operator
    from gantrymq.cli.mqtt.reach import tables
    from gantrymq.cli.screen import CONSOLE, plain

    key, length_s = ban_key(client, user, address), seconds_of(duration)
    now_ms = time.time_ns() // 1_000_000
    row = {"until": now_ms + length_s * 1000 if length_s else 0, "reason": reason, "by": operator(), "at": now_ms}
    async with tables(";".join(admin.client.routes.nameservers)) as reach:
        await reach.put(BANS, [(key, json.dumps(row).encode())])
    CONSOLE.print(f"banned {plain(key)}" + (f" for {duration}" if length_s else " until `gantry mqtt unban`"))


async def do_unban(admin: Any, client: str, user: str, address: str) -> None:
    """Delete the row."""
    from gantrymq.cli.mqtt.reach import tables
    from gantrymq.cli.screen import CONSOLE, plain
    from gantrymq.model.errors import ErrorCode, GantryError

    key = ban_key(client, user, address)
    async with tables(";".join(admin.client.routes.nameservers)) as reach:
        if key not in await reach.rows(BANS):
            raise GantryError(ErrorCode.NOT_FOUND, f"{key} is not banned (see `gantry mqtt bans`)")
        await reach.put(BANS, [(key, None)])
    CONSOLE.print(f"{plain(key)} may come again")


async def show_bans(admin: Any, as_json: bool) -> None:
    """A row each."""
    from gantrymq.cli.screen import plain, span

    now_ms = time.time_ns() // 1_000_000

    async def fetch(reach: Any) -> tuple[list[Any], Any]:
        rows = []
        for key, value in sorted((await reach.rows(BANS)).items()):
            kind, _, whom = key.partition(":")
            row = json.loads(value)
            rows.append({"kind": kind, "whom": whom, "until_ms": row.get("until", 0), "reason": row.get("reason", "")})
        cells = [
            [row["kind"], plain(row["whom"]), _left(row["until_ms"], now_ms, span), plain(row["reason"] or "-")]
            for row in rows
        ]
        return rows, _picture(["kind", "whom", "ends", "reason"], cells, "nobody is banned")

    await _watched(admin, fetch, False, 1.0, as_json)


def _left(until_ms: int, now_ms: int, span: Any) -> str:
    if not until_ms:
        return "never"
    return f"in {span(until_ms - now_ms)}" if until_ms > now_ms else "it is over"
