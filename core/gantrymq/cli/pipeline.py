"""`gantry pipeline init`: a Spark project to begin with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gantrymq.launch.exit_codes import EXIT_FAILED, EXIT_USAGE
from gantrymq.logs import complain

pipeline_app = typer.Typer()


@pipeline_app.callback()
def about() -> None:
    """Spark projects."""


@pipeline_app.command()
def init(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the pipeline, and of the folder that is made.")],
    directory: Annotated[Path, typer.Option("--dir", help="Where the folder goes.")] = Path(),
) -> None:
    """Write a small Spark project: telemetry to tables and alerts, with tests and a sample to run without a server."""
    from gantrymq.spark.pipeline.start import PipelineError, write_project

    try:
        written = write_project(name, directory)
    except PipelineError as error:
        complain(str(error))
        raise typer.Exit(EXIT_USAGE) from None
    except OSError as error:
        complain(f"{error.filename or directory / name}: {error.strerror}")
        raise typer.Exit(EXIT_FAILED) from error
    typer.echo(f"wrote {len(written)} files into {directory / name}")
    typer.echo(f"next: cd {directory / name} && ./run test && ./run local")
