"""The commands of `gantry message`: those for single messages, and those that also belong to no group."""

from __future__ import annotations

import typer

from gantrymq.cli.alone import query, send
from gantrymq.cli.commands.messages import get, redrive
from gantrymq.cli.commands.tail import tail

message_app = typer.Typer()
for command in (tail, send, query, get, redrive):
    message_app.command()(command)
