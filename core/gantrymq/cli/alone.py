"""Commands that belong to no group: what they take. What they do is imported when one of them runs, for every start reads this file."""

from __future__ import annotations

import sys
from typing import Annotated, Final

import typer

from gantrymq.cli import completion, options
from gantrymq.cli.options import All, Interval, Json, Nameserver, Watch
from gantrymq.model.errors import GantryError

TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
OWN_OPTIONS: Final = {"TAGS": "--tag", "KEYS": "--key", "__SHARDINGKEY": "--sharding-key"}
"""Properties of RocketMQ's that `gantry send` has an option for."""

Topic = Annotated[str, typer.Argument(metavar="TOPIC", autocompletion=completion.topics)]


def cluster(
    context: typer.Context,
    json_: Json = False,
    watching: Watch = False,
    interval: Interval = 2.0,
    nameserver: Nameserver = None,
) -> None:
    """Clusters, brokers and nameservers at a glance; with a COMMAND: which broker decides about which names."""
    if context.invoked_subcommand is not None:
        return
    from gantrymq.cli.commands.brokers import do_cluster

    options.run(do_cluster, nameserver, again=watching, interval_s=interval, as_lines=json_)


def trace(
    message_id: Annotated[str, typer.Argument(metavar="ID", help="The message id that its producer got, or a key.")],
    topic: Annotated[
        str, typer.Option(help="Topic that clients write their traces to.", autocompletion=completion.topics)
    ] = TRACE_TOPIC,
    json_: Json = False,
    nameserver: Nameserver = None,
) -> None:
    """What clients with message trace on say of a message: when it was sent, and who consumed it."""
    from gantrymq.cli.commands.messages import do_trace

    options.run(do_trace, nameserver, message_id=message_id, topic=topic, as_lines=json_)


def top(
    interval: Annotated[float, typer.Option("--interval", min=0.2, help="Seconds between two looks.")] = 1.0,
    metrics: Annotated[
        list[str] | None,
        typer.Option(
            "--metrics", metavar="HOST:PORT", help="Metrics of a gateway process, for its connections; may be repeated."
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="One snapshot, no live screen.")] = False,
    all_: All = False,
    json_: Json = False,
    nameserver: Nameserver = None,
) -> None:
    """Brokers, topics, groups and connections, live. Keys: q ends it, space holds it, s sorts.

    Without a terminal, or with TERM=dumb, it prints one snapshot.
    """
    from gantrymq.cli.commands.top import do_top

    options.run(
        do_top, nameserver, interval_s=interval, places=metrics or [], once=once, everything=all_, as_lines=json_
    )


def send(
    topic: Topic,
    body: Annotated[str | None, typer.Argument(help="Text; left out or -: standard input.")] = None,
    tag: Annotated[str, typer.Option(help="Tag.")] = "",
    key: Annotated[list[str] | None, typer.Option(help="Key to query by; may be repeated.")] = None,
    property_: Annotated[
        list[str] | None, typer.Option("--property", metavar="NAME=VALUE", help="User property; may be repeated.")
    ] = None,
    sharding_key: Annotated[str, typer.Option(help="Messages of one sharding key stay in order.")] = "",
    nameserver: Nameserver = None,
) -> None:
    """Send one message."""
    from gantrymq.cli.commands import people
    from gantrymq.client.producing.checks import check_keys, check_tag

    properties: dict[str, str] = {}
    for text in property_ or ():
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise typer.BadParameter(f"{text!r} must be NAME=VALUE", param_hint="--property")
        if name in OWN_OPTIONS:
            raise typer.BadParameter(
                f"{name} is no property of a user's own: use {OWN_OPTIONS[name]}", param_hint="--property"
            )
        properties[name] = value
    option = "--tag"
    try:
        check_tag(tag)
        option = "--key"
        check_keys(key or ())
    except GantryError as error:
        raise typer.BadParameter(error.text, param_hint=option) from None
    content = sys.stdin.buffer.read() if body in (None, "-") else (body or "").encode()
    options.run(
        people.send, nameserver,
        topic=topic, body=content, tag=tag, keys=key or [], properties=properties, sharding_key=sharding_key,
    )  # fmt: skip


def pull(
    topic: Topic,
    tags: Annotated[str, typer.Option("--tag", help="Only these: 'a || b', or * for all.")] = "*",
    start_at: Annotated[
        str,
        typer.Option("--from", metavar="WHERE", help="earliest, latest, or a time: 2026-01-31T12:00 or milliseconds."),
    ] = "earliest",
    group: Annotated[
        str | None,
        typer.Option(
            help="Go on where this consumer group is, and commit what was shown.", autocompletion=completion.groups
        ),
    ] = None,
    count: Annotated[int, typer.Option("--max", min=1, help="Stop after so many messages.")] = 100,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for new messages instead of stopping at the end.")
    ] = False,
    json_: Json = False,
    nameserver: Nameserver = None,
) -> None:
    """Show messages of a topic."""
    from gantrymq.cli.commands import people

    options.run(
        people.pull, nameserver,
        topic=topic, tags=tags, start_at=start_at, group=group, count=count, follow=follow, as_json=json_,
    )  # fmt: skip


def query(
    topic: Annotated[
        str,
        typer.Option(help="Topic; needed for --key and for a client's message id.", autocompletion=completion.topics),
    ] = "",
    key: Annotated[str, typer.Option(help="Messages with this key.")] = "",
    id_: Annotated[str, typer.Option("--id", help="The message with this id.")] = "",
    count: Annotated[int, typer.Option("--max", min=1, max=64, help="Newest messages of the key.")] = 32,
    json_: Json = False,
    nameserver: Nameserver = None,
) -> None:
    """Find messages by key or by message id."""
    if bool(key) == bool(id_):
        raise typer.BadParameter("give either --key (with --topic) or --id")
    if key and not topic:
        raise typer.BadParameter("--key needs --topic")
    from gantrymq.cli.commands import people

    options.run(people.query, nameserver, topic=topic, key=key, message_id=id_, count=count, as_json=json_)
