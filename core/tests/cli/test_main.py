"""The two parsers of the server commands agree, and the start stays light."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gantrymq import __version__, server
from gantrymq.cli import app as typer_side
from gantrymq.cli.main import main, parse_server_command
from gantrymq.launch.exit_codes import EXIT_USAGE
from gantrymq.launch.plan import Launch


@pytest.mark.parametrize(
    "line",
    [
        "up",
        "up --data d --host ::1 --config c.toml --ready-file r --nameserver a:1;b:2",
        "up --data=d --set a.b=c --set=d.e=f --free-ports",
        "nameserver --set nameserver.port=0",
        "broker --nameserver a:1 --free-ports --accept-loss",
        "gateway",
        "gateway mqtt amqp --nameserver a:1",
        "gateway --set mqtt.port=1 mqtt",
    ],
)
def test_both_parsers_make_the_same_launch(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = line.split()
    values = parse_server_command(arguments)
    assert values is not None
    seen: list[Launch] = []

    def run(launch: Launch) -> int:
        seen.append(launch)
        return 7

    monkeypatch.setattr(server, "run", run)
    assert typer_side.run_app(arguments) == 7
    assert seen == [Launch(**values)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "line", ["", "up --help", "up --data", "up --data --free-ports", "up mqtt", "up -x", "send t", "gateway -h"]
)
def test_anything_else_is_left_to_typer(line: str) -> None:
    assert parse_server_command(line.split()) is None


@pytest.mark.parametrize(
    ("line", "code", "part"),
    [
        ("up --bogus", EXIT_USAGE, "--bogus"),
        ("pull t --from never", EXIT_USAGE, "must be earliest, latest, a time"),
        ("pull t --max 0", EXIT_USAGE, "--max"),
        ("query", EXIT_USAGE, "either --key"),
        ("query --key k", EXIT_USAGE, "--key needs --topic"),
        ("send t b --property x", EXIT_USAGE, "NAME=VALUE"),
        ("topic list --nameserver nowhere", EXIT_USAGE, "HOST:PORT"),
        ("up --set x", EXIT_USAGE, "SECTION.KEY=VALUE"),
        ("gateway bogus", EXIT_USAGE, "no such service"),
        ("topic create bad/name!", EXIT_USAGE, "bad/name!"),
        ("message get --topic t --at b/0", EXIT_USAGE, "BROKER/QUEUE/OFFSET"),
        ("offset reset g --topic t --to 5 --queue b --yes", EXIT_USAGE, "BROKER/NUMBER"),
    ],
)
def test_errors_are_short_and_say_what_is_wrong(
    line: str, code: int, part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(line.split()) == code
    err = capsys.readouterr().err
    assert part in err
    assert "Traceback" not in err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert main(["-V"]) == 0
    assert typer_side.run_app(["--version"]) == 0
    assert capsys.readouterr().out == f"gantry {__version__}\n" * 3


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    for command in ("up", "nameserver", "broker", "gateway", "topic", "send", "pull", "query"):
        assert f"\n  {command} " in out


def test_a_server_does_not_load_what_only_people_and_spark_need() -> None:
    program = (
        "import sys\n"
        "from gantrymq.cli import main\n"
        "import gantrymq.server\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules}\n"
        "    & {'typer', 'click', 'rich', 'pydantic', 'pyspark', 'pyarrow', 'numpy', 'pandas', 'grpc'}))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=150)
    assert done.stdout == "[]\n"


def test_nameservers_named_one_by_one_are_all_used() -> None:
    values = parse_server_command(["broker", "--nameserver", "a:1", "--nameserver=b:2"])
    assert values is not None
    assert values["nameserver"] == "a:1;b:2"
