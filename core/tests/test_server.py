"""A whole process with tiny services: start, ready file, stop, and everything that may go wrong on the way."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from core.tests.stranger_service import install_stranger
from gantrymq.config import load, parse_nameservers
from gantrymq.launch.checks import check_bind
from gantrymq.launch.exit_codes import EXIT_FAILED, EXIT_USAGE
from gantrymq.launch.plan import Launch, make_plan, wanted_names
from gantrymq.model.errors import ConfigError
from gantrymq.net.loopback import is_loopback
from gantrymq.server import write_atomically
from interop_tests import guard
from interop_tests.waiting import until

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("fake_services.py")


def environment(trouble: str = "") -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GANTRY_", "NAMESRV"))}
    return {**kept, **guard.mark(), "PYTHONPATH": os.pathsep.join(sys.path), "FAKE_TROUBLE": trouble}


class Running:
    """A started server; its output is read line by line, so that nothing has to wait for a time."""

    def __init__(
        self, directory: Path, *arguments: str, trouble: str = "", prepare: Callable[[], None] | None = None
    ) -> None:
        self.ready_file = directory / "ready.json"
        self.process = subprocess.Popen(
            [
                sys.executable, str(PROGRAM), "up", "--data", str(directory / "data"), "--ready-file",
                str(self.ready_file), *arguments,
            ],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(trouble), cwd=directory,
            preexec_fn=prepare,
        )  # fmt: skip
        self.lines: list[str] = []

    def until(self, line: str) -> None:
        """Read up to this line."""
        assert self.process.stdout is not None
        for text in self.process.stdout:
            self.lines.append(text.rstrip("\n"))
            if self.lines[-1] == line:
                return
        raise AssertionError(f"{line!r} never came: {self.lines} {self.process.stderr and self.process.stderr.read()}")

    def address(self, name: str) -> tuple[str, int]:
        host, port = json.loads(self.ready_file.read_text())[name].rsplit(":", 1)
        return host, int(port)

    def ended_by(self, number: signal.Signals) -> bool:
        """It has ended; otherwise it gets the signal once more."""
        if self.process.poll() is not None:
            return True
        self.process.send_signal(number)
        return False

    def end(self, number: signal.Signals | None = None) -> tuple[int, str]:
        """Send a signal and wait; exit code and stderr."""
        if number is not None:
            self.process.send_signal(number)
        out, err = self.process.communicate(timeout=150)
        self.lines += out.splitlines()
        return self.process.returncode, err


@contextmanager
def running(
    directory: Path, *arguments: str, trouble: str = "", prepare: Callable[[], None] | None = None
) -> Iterator[Running]:
    server = Running(directory, *arguments, trouble=trouble, prepare=prepare)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.process.kill()
        server.process.communicate()


def fails(directory: Path, *arguments: str, trouble: str = "") -> tuple[int, str, list[str]]:
    """Exit code, stderr, stdout lines of a start that does not succeed."""
    with running(directory, *arguments, trouble=trouble) as server:
        code, err = server.end()
        return code, err, server.lines


@pytest.mark.parametrize("kind", ["a file", "a name"])
def test_the_service_manager_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """As sd_notify(3) has it: where the socket is, a name without a file begins with @."""
    name = str(tmp_path / "notify") if kind == "a file" else f"gantry-test-{tmp_path}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.settimeout(30)
        manager.bind(name if kind == "a file" else "\0" + name)
        monkeypatch.setenv("NOTIFY_SOCKET", name if kind == "a file" else "@" + name)
        with running(tmp_path, "--free-ports") as server:
            assert manager.recv(100) == b"READY=1"
            assert server.ready_file.exists()
            server.process.send_signal(signal.SIGTERM)
            assert manager.recv(100) == b"STOPPING=1"
            assert server.end()[0] == 0


def test_a_service_manager_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    with running(tmp_path, "--free-ports") as server:
        server.until("ready")
        code, err = server.end(signal.SIGTERM)
    assert code == 0
    assert "the service manager at NOTIFY_SOCKET cannot be told READY=1: No such file or directory" in err


def test_a_server_says_what_to_try_where_its_data_is_and_who_may_come_in(tmp_path: Path) -> None:
    with running(tmp_path, "--free-ports") as server:
        server.until("nobody is authenticated: whoever reaches these doors may read and write; Ctrl-C stops")
        steps = server.lines[server.lines.index("ready") + 1 :]
        nameserver = json.loads(server.ready_file.read_text())["nameserver"]
        assert len(steps) == 4
        assert f"gantry send hello 'Hi!' --tag a.b --nameserver {nameserver}" in steps[0]
        assert "gantry top" in steps[2]
        assert f"data in {tmp_path / 'data'}" in "\n".join(server.lines)
        server.end(signal.SIGINT)
    assert server.lines[-1] == f"stopped, everything that was acknowledged is in {tmp_path / 'data'}"


def test_what_to_try_is_what_can_be_typed_in_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it is on PATH there: `./run` says how it is called."""
    words = next(line for line in (ROOT / "run").read_text().splitlines() if "GANTRY_TYPED_AS=" in line)
    given = environment() | {"GANTRY_TYPED_AS": words.split("'")[1]}
    monkeypatch.setitem(globals(), "environment", lambda trouble="": given)
    with running(tmp_path, "--free-ports") as server:
        server.until("nobody is authenticated: whoever reaches these doors may read and write; Ctrl-C stops")
        server.end(signal.SIGINT)
    steps = server.lines[server.lines.index("ready") + 1 :]
    assert steps[0].startswith("try  ./run gantry send hello 'Hi!' --tag a.b ")
    assert " && ./run gantry message tail hello " in steps[0]
    assert steps[2].split(" --nameserver")[0] == "     ./run gantry top"


@pytest.mark.skipif(sys.platform != "linux", reason="RssAnon")
def test_what_the_start_has_freed_goes_back_to_the_system(tmp_path: Path) -> None:
    with running(tmp_path, trouble="echo leaves holes") as server:
        server.until("ready")
        status = Path(f"/proc/{server.process.pid}/status").read_text()
        (kib,) = [int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon")]
        assert kib < 64 * 1024, kib
        assert server.end(signal.SIGTERM)[0] == 0


def test_output_and_log_together_are_json_lines(tmp_path: Path) -> None:
    with running(tmp_path, "--free-ports", "--log-format", "json") as server:
        until(server.ready_file.exists)
        _, err = server.end(signal.SIGINT)
    said = [line for line in server.lines if '"message"' in line]  # the others are the fake services' own
    messages = [json.loads(line)["message"] for line in said]
    assert "ready" in messages
    assert '"SIGINT: stopping"' in err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_start_ready_file_serve_and_clean_stop(tmp_path: Path, number: signal.Signals) -> None:
    with running(tmp_path, "--free-ports") as server:
        server.until("ready")
        assert list(json.loads(server.ready_file.read_text())) == ["nameserver", "broker", "echo"]
        with socket.create_connection(server.address("echo"), 30) as client:
            client.sendall(b"hello")
            assert client.recv(100) == b"hello"
            server.process.send_signal(number)
            assert client.recv(100) == b"goodbye"
            assert client.recv(100) == b""
        code, err = server.end()
    assert code == 0
    assert "Traceback" not in err
    assert server.lines[:3] == ["import nameserver", "import broker", "import echo"]
    assert "port: FakePort" in server.lines
    assert "nameservers: 1 True" in server.lines
    stops = [line for line in server.lines if line.startswith(("drain ", "stop "))]
    assert stops == [f"{what} {name}" for name in ("echo", "broker", "nameserver") for what in ("drain", "stop")]
    assert server.lines.index("stop echo") < server.lines.index("close port") < server.lines.index("drain broker")
    assert not list(tmp_path.glob("*.tmp"))


def test_a_door_that_raises_is_one_line_and_no_other_connection_notices(tmp_path: Path) -> None:
    with running(tmp_path, "--free-ports") as server:
        server.until("ready")
        with socket.create_connection(server.address("echo"), 30) as good:
            with socket.create_connection(server.address("echo"), 30) as bad:
                bad.sendall(b"boom")
                peer = f"127.0.0.1:{bad.getsockname()[1]}"
                try:
                    assert bad.recv(100) == b""
                except ConnectionResetError:
                    pass
            good.sendall(b"hello")
            assert good.recv(100) == b"hello"
        code, err = server.end(signal.SIGTERM)
    assert code == 0
    assert [line.partition("pump: ")[2] for line in err.splitlines() if "boom" in line] == [
        f"{peer}: FakeDoor failed: ValueError: boom; closed"
    ]
    assert "Traceback" not in err


def test_port_in_use_is_one_line_and_everything_else_is_stopped(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, err, lines = fails(tmp_path, "--free-ports", "--set", f"echo.port={port}")
    assert code == EXIT_FAILED
    assert err.splitlines() == [
        f"gantry: echo: cannot listen on 127.0.0.1:{port}: the port is in use (is another gantry running?)"
    ]
    assert [line for line in lines if line.startswith("stop")] == ["stop echo", "stop broker", "stop nameserver"]
    assert not (tmp_path / "ready.json").exists()


def test_bad_directory_failing_service_and_failing_task(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, err, _ = fails(tmp_path, "--data", str(tmp_path / "file"))
    assert (code, err) == (
        EXIT_FAILED,
        f"gantry: nameserver: data directory {tmp_path / 'file'}: is a file; name a directory, with --data or server.data\n",
    )
    code, err, _ = fails(tmp_path, trouble="echo is broken")
    assert code == EXIT_FAILED
    assert err.startswith("gantry: echo: cannot be loaded: ImportError: no module named grpc; ")
    code, err, lines = fails(tmp_path, trouble="echo fails")
    assert (code, err) == (EXIT_FAILED, "gantry: echo: RuntimeError: no luck today\n")
    assert "stop echo" in lines
    code, err, _ = fails(tmp_path, trouble="echo task fails")
    assert code == EXIT_FAILED
    assert "background task FakeService.fail failed, stopping: RuntimeError: task broke" in err


def test_ready_file_that_cannot_be_written(tmp_path: Path) -> None:
    code, err, _ = fails(tmp_path, "--ready-file", str(tmp_path / "no" / "such" / "file"))
    assert code == EXIT_USAGE
    assert (
        err
        == f"gantry: --ready-file {tmp_path / 'no' / 'such' / 'file'}: there is no directory {tmp_path / 'no' / 'such'}\n"
    )


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--set", "echo.flavour=hot"], 'echo.flavour = "hot" (--set): must be one of plain, loud'),
        (["--set", "ehco.port=1"], 'ehco.port = "1" (--set): no such section; did you mean echo?'),
        (["--set", "store.flus=1"], 'store.flus = "1" (--set): no such setting; did you mean store.flush?'),
        (["--host", "0.0.0.0"], 'server.host = "0.0.0.0" (--host): other machines could connect'),
        (["--nameserver", "here"], 'nameserver = "here" (--nameserver): must be HOST:PORT'),
        (["--set", "echo.enabled=maybe"], 'echo.enabled = "maybe" (--set): must be true or false'),
        (["--config", "missing.toml"], "--config missing.toml: No such file or directory"),
    ],
)
def test_bad_configuration_is_one_line_and_exit_2(tmp_path: Path, arguments: list[str], line: str) -> None:
    code, err, lines = fails(tmp_path, *arguments)
    assert code == EXIT_USAGE
    assert err.startswith(f"gantry: {line}")
    assert len(err.splitlines()) == 1
    assert not [text for text in lines if not text.startswith("import")]


def test_each_error_of_a_configuration_is_a_line(tmp_path: Path) -> None:
    (tmp_path / "gantry.toml").write_text('port = 1\n[echo]\nflavour = "hot"\n\nprot = 2\n[store]\nflush = 3\n')
    code, err, _ = fails(tmp_path, "--config", "gantry.toml", "--set", "nonsense", "--host", "0.0.0.0")
    assert code == EXIT_USAGE
    assert [line.partition(")")[0] for line in err.splitlines()] == [
        "gantry: port = 1 (gantry.toml:1",
        "gantry: --set nonsense: must be SECTION.KEY=VALUE, for example --set mqtt.port=1884",
        'gantry: echo.flavour = "hot" (gantry.toml:3',
        "gantry: echo.prot = 2 (gantry.toml:5",
        "gantry: store.flush = 3 (gantry.toml:7",
        'gantry: server.host = "0.0.0.0" (--host',
    ]


def test_two_doors_with_one_port(tmp_path: Path) -> None:
    code, err, _ = fails(tmp_path, "--set", "echo.port=7777", "--set", "broker.port=7777")
    assert code == EXIT_USAGE
    assert err.startswith(
        "gantry: echo.port = 7777 (--set): broker.port is the same (--set); give one of them another port"
    )
    assert len(err.splitlines()) == 1


def test_a_door_that_is_off_is_not_imported_and_its_settings_do_no_harm(tmp_path: Path) -> None:
    with running(tmp_path, "--set", "echo.enabled=false", "--set", "echo.unknown=1") as server:
        server.until("ready")
        code, _ = server.end(signal.SIGTERM)
    assert code == 0
    assert "import echo" not in server.lines


def test_insecure_bind_opens_the_door_when_asked(tmp_path: Path) -> None:
    with running(tmp_path, "--host", "0.0.0.0", "--set", "server.insecure_bind=true") as server:
        server.until("ready")
        assert server.address("echo")[0] == "0.0.0.0"
        assert server.end(signal.SIGTERM)[0] == 0


def test_signal_while_starting_and_second_signal(tmp_path: Path) -> None:
    with running(tmp_path, trouble="echo hangs") as server:
        server.until("hanging")
        code, err = server.end(signal.SIGTERM)
        assert (code, "Traceback" in err) == (0, False)
        assert server.lines[-2] == "stop nameserver"
    with running(tmp_path, trouble="never closes") as server:
        server.until("ready")
        with socket.create_connection(server.address("echo"), 30):
            server.process.send_signal(signal.SIGINT)
            server.until("drain echo")
            until(lambda: server.ended_by(signal.SIGINT))  # again and again: one right after the first does not count
            code, _ = server.end()
        assert code == EXIT_FAILED
        assert server.lines[-1] == "stopped at once"


def test_one_stop_sent_twice_is_a_clean_stop(tmp_path: Path) -> None:
    """As `timeout` sends it: to the process, and to the process group that it is in."""
    with running(tmp_path) as server:
        server.until("ready")
        server.process.send_signal(signal.SIGSTOP)  # both are there when it goes on
        server.process.send_signal(signal.SIGTERM)
        server.process.send_signal(signal.SIGINT)
        code, err = server.end(signal.SIGCONT)
    assert (code, err.count("stopping")) == (0, 1)
    assert server.lines[-2:] == [
        "stop nameserver",
        f"stopped, everything that was acknowledged is in {tmp_path / 'data'}",
    ]


def test_a_ready_file_that_cannot_be(tmp_path: Path) -> None:
    for place, reason in ((tmp_path, "it is a directory"), (tmp_path / "no" / "f", "there is no directory")):
        with pytest.raises(ConfigError, match=f"^--ready-file {place}: {reason}"):
            make_plan(Launch("up", ready_file=str(place)), {})
    data = tmp_path / "data"
    assert make_plan(Launch("up", data=str(data), ready_file=str(data / "ready")), {}).ready_file == data / "ready"


def test_a_ready_file_of_somebody_else(tmp_path: Path) -> None:
    code, err, _ = fails(tmp_path, "--ready-file", "/proc/version")
    assert (code, err) == (EXIT_FAILED, "gantry: --ready-file /proc/version: Operation not permitted\n")


def test_nobody_reads_the_output(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        server.until("import nameserver")
        assert server.process.stdout is not None
        server.process.stdout.close()
        server.process.stdout = None
        while not server.ready_file.exists():
            assert server.process.poll() is None
        server.process.send_signal(signal.SIGTERM)
        _, err = server.process.communicate(timeout=150)
    assert server.process.returncode == 0
    assert "BrokenPipe" not in err


def test_deadline_of_the_drain_closes_what_is_left(tmp_path: Path) -> None:
    with running(tmp_path, "--set", "server.drain_ms=300", trouble="never closes") as server:
        server.until("ready")
        with socket.create_connection(server.address("echo"), 30):
            assert server.end(signal.SIGTERM)[0] == 0


@pytest.mark.parametrize("sets", [(), ("--set", "server.connections_max=1000000")])
def test_connections_stay_below_the_limit_of_open_files(tmp_path: Path, sets: tuple[str, ...]) -> None:
    limited = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))  # noqa: E731
    with running(tmp_path, *sets, prepare=limited) as server:
        server.until("ready")
        clients = [socket.create_connection(server.address("echo"), 30) for _ in range(60)]
        served = 0
        for client in clients:
            try:
                client.sendall(b"x")
                served += client.recv(1) == b"x"
            except OSError:
                pass
        for client in clients:
            client.close()
        assert served == 29  # of the 32 that fit, a tenth is for other doors
        code, err = server.end(signal.SIGTERM)
    assert code == 0
    refused = [line for line in err.splitlines() if "refused, server.door_connections_max (29) is reached" in line]
    assert len(refused) == 1


def test_entry_points_of_a_stranger_are_found(tmp_path: Path) -> None:
    """The real discovery: a distribution that nobody here knows brings a service, and its broken setting is judged by it."""
    install_stranger(tmp_path, "port: int = 0")
    done = subprocess.run(
        [sys.executable, "-m", "gantrymq", "gateway", "stranger", "--set", "stranger.prot=1"],
        env=environment() | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    assert done.stderr.startswith('gantry: stranger.prot = "1" (--set): no such setting; did you mean stranger.port?')
    assert done.returncode == EXIT_USAGE
    done = subprocess.run(
        [sys.executable, "-m", "gantrymq", "gateway", "strange"],
        env=environment() | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    assert done.stderr.startswith("gantry: gateway strange: no such service; installed: ")
    assert "stranger" in done.stderr


def test_a_service_may_read_a_part_of_anothers_section(tmp_path: Path) -> None:
    """The broker reads one setting of the AMQP door, which has many."""
    given = ("amqp.keep_exchange_records=false", "amqp.frame_max=8192")
    for command in ("up", "broker"):
        plan = make_plan(Launch(command, data=str(tmp_path), sets=given), {})
        assert plan.sections["broker"]["amqp"].keep_exchange_records is False
    assert make_plan(Launch("broker", data=str(tmp_path)), {}).sections["broker"]["amqp"].keep_exchange_records
    for command in ("up", "broker"):
        with pytest.raises(
            ConfigError, match=r"^amqp\.keep_exchange_records = \"maybe\" \(--set\): must be true or false$"
        ):
            make_plan(Launch(command, data=str(tmp_path), sets=("amqp.keep_exchange_records=maybe",)), {})


def test_up_starts_no_nameserver_where_another_is_named() -> None:
    installed = dict.fromkeys(("nameserver", "broker", "mqtt"))

    def names(*sets: str) -> list[str]:
        return wanted_names(Launch("up"), load(None, {}, sets), installed)  # type: ignore[arg-type]

    assert names() == ["nameserver", "broker", "mqtt"]
    assert names("server.nameserver=") == ["nameserver", "broker", "mqtt"]
    assert names("server.nameserver=a:1") == ["broker", "mqtt"]
    assert names("server.nameserver=a:1", "nameserver.enabled=true") == ["nameserver", "broker", "mqtt"]


def test_nameservers() -> None:
    assert parse_nameservers("a:1; [::1]:2;", "x") == ["a:1", "[::1]:2"]
    for text in ("", ";", "a", "a:", ":1", "a:0", "a:70000", "a:1;b"):
        with pytest.raises(ConfigError, match="HOST:PORT"):
            parse_nameservers(text, "NAMESRV_ADDR")


def test_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(host: str, port: None) -> list[tuple[object, ...]]:
        if host != "localhost":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(0, 0, 0, "", ("127.0.0.1", 0)), (0, 0, 0, "", ("::1", 0, 0, 0))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    assert is_loopback("127.0.0.1")
    assert is_loopback("::1")
    assert is_loopback("localhost")
    assert not is_loopback("0.0.0.0")
    assert not is_loopback("::")
    assert not is_loopback("")
    with pytest.raises(ConfigError, match=r'server\.host = "no\.such\.host" \(--host\): Name or service not known'):
        check_bind("no.such.host", False, "--host")


def test_atomic_write_replaces(tmp_path: Path) -> None:
    target = tmp_path / "f"
    write_atomically(target, "one")
    write_atomically(target, "two")
    assert target.read_text() == "two"
    assert [path.name for path in tmp_path.iterdir()] == ["f"]
