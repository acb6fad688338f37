"""Power loss by shutting a real file system down under a broker that acknowledges what it has synced, and I/O errors in a running server.

An ext4 on a loop device is shut down without writing its journal or any dirty page; the next mount sees what a cut power line would have
left. The control: what an asynchronous flush acknowledged must be found missing.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import random
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from interop_tests.bench import remoting_wire
from interop_tests.crash.promises import Finding, Ledger, check_queues
from interop_tests.crash.raw_load import QUEUES, TOPIC, LogReader, RemotingPublisher
from interop_tests.crash.test_syscalls import STRACE, why_not
from interop_tests.running import Gantry, Process
from interop_tests.waiting import until

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(200)]

IMAGE_BYTES = 96 << 20
EXT4_IOC_SHUTDOWN = 0x8004587D
NO_LOG_FLUSH = 2
"""EXT4_GOING_FLAGS_NOLOGFLUSH: nothing more reaches the device."""
CUTS = 6
EXIT_S = 200.0


class Image:
    """A file system in a file, mounted through a loop device."""

    def __init__(self, directory: Path) -> None:
        self.file = directory / "image"
        self.mount_point = directory / "mount"
        self.mount_point.mkdir()
        self.device = ""

    def make(self) -> None:
        with self.file.open("wb") as file:
            file.truncate(IMAGE_BYTES)
        self._command("mkfs.ext4", "-q", "-F", str(self.file))
        self.device = self._command("losetup", "--find", "--show", str(self.file))
        self.mount()

    def mount(self) -> None:
        self._command("mount", self.device, str(self.mount_point))

    def cut_power(self) -> None:
        handle = os.open(self.mount_point, os.O_RDONLY)
        try:
            fcntl.ioctl(handle, EXT4_IOC_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        finally:
            os.close(handle)

    def unmount(self) -> None:
        # A moment after its last process the kernel may still hold it.
        until(lambda: self._command("umount", str(self.mount_point)) or True, ignored=(OSError,))

    def remove(self) -> None:
        if self.mount_point.is_mount():
            self.unmount()
        if self.device:
            self._command("losetup", "-d", self.device)

    @staticmethod
    def _command(*words: str) -> str:
        done = subprocess.run(words, capture_output=True, text=True, timeout=60)
        if done.returncode:
            raise OSError(f"{' '.join(words)}: {done.stderr.strip()}")
        return done.stdout.strip()


@pytest.fixture
def image(tmp_path: Path) -> Iterator[Image]:
    if os.geteuid() != 0:
        pytest.skip("mounting a loop image needs root")
    for program in ("mkfs.ext4", "losetup", "mount"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed (Debian, Ubuntu: apt install e2fsprogs mount)")
    made = Image(tmp_path)
    try:
        try:
            made.make()
        except OSError as error:
            pytest.skip(f"no loop image here: {error}")
        yield made
    finally:
        made.remove()


class Powered:
    """A broker on an image, and two publishers."""

    def __init__(self, image: Image, directory: Path, *settings: str) -> None:
        self.image = image
        command = ["broker", "--data", str(image.mount_point / "data"), "--set=store.commitlog_file_size=1048576"]
        self.process = Process("broker", directory, [*command, *(f"--set={setting}" for setting in settings)])
        self.numbers: Iterator[int] = itertools.count()
        self.ledger = Ledger()

    def start(self) -> None:
        self.process.start()
        with remoting_wire.connect(self.process.doors["broker"]) as sock:
            remoting_wire.create_topic(sock, TOPIC, QUEUES)

    def load(self, enough: int) -> list[RemotingPublisher]:
        server: Any = SimpleNamespace(doors=self.process.doors)
        publishers = [Mute(server, self.numbers)]
        for publisher in publishers:
            publisher.start()
        until(lambda: all(len(one.ledger.acknowledged) >= enough or not one.is_alive() for one in publishers))
        return publishers

    def collect(self, publishers: list[RemotingPublisher], enough: int) -> None:
        for publisher in publishers:
            publisher.join(EXIT_S)
            assert not publisher.is_alive()
            assert publisher.failure is None
            assert len(publisher.ledger.acknowledged) >= enough
            self.ledger.add(publisher.ledger)

    def findings(self) -> list[Finding]:
        server: Any = SimpleNamespace(doors=self.process.doors)
        log = LogReader()
        log.read(server)
        return check_queues(self.ledger, log.queues)


class Mute(RemotingPublisher):
    """A refusal is an answer too: it promises nothing."""

    def refused(self, tag: int, code: int, remark: str) -> None:
        self.open.pop(tag)


def ended(process: Process) -> int:
    """The exit code of a server that stops by itself."""
    running = process.process
    assert running is not None
    code = running.wait(EXIT_S)
    process.process = None
    return code


def test_what_was_acknowledged_as_flushed_survives_power_loss(image: Image, tmp_path: Path) -> None:
    work = Powered(image, tmp_path, "store.flush=sync")
    lot = random.Random(1)
    work.start()
    try:
        for cut in range(CUTS):
            enough = lot.randrange(50, 800)
            publishers = work.load(enough)
            image.cut_power()
            if cut % 2:
                assert ended(work.process) not in (0, -9)
                assert "the store stopped" in work.process.log()
            else:
                work.process.kill()
            work.collect(publishers, enough)
            image.unmount()
            image.mount()
            work.process.start()
            findings = work.findings()
            assert not findings, findings[:10]
        assert work.process.stop() == 0
    finally:
        work.process.kill()


def test_asynchronous_flush_is_found_to_lose(image: Image, tmp_path: Path) -> None:
    work = Powered(image, tmp_path, "store.flush=async", "store.flush_interval_ms=60000")
    work.start()
    try:
        publishers = work.load(300)
        image.cut_power()
        work.process.kill()
        work.collect(publishers, 300)
        image.unmount()
        image.mount()
        work.start()
        assert {finding.kind for finding in work.findings()} == {"lost"}
    finally:
        work.process.kill()


@pytest.mark.skipif(STRACE is None, reason="strace is not installed (Debian, Ubuntu: apt install strace)")
@pytest.mark.parametrize("flush", ["sync", "async"])
def test_first_failed_sync_ends_the_server(tmp_path: Path, flush: str) -> None:
    if reason := why_not():
        pytest.skip(f"strace may not trace here: {reason}")
    server = Gantry(tmp_path, "combined", (f"store.flush={flush}", "store.flush_interval_ms=100"))
    server.start()
    process = server.process("up")
    numbers = itertools.count()
    try:
        with remoting_wire.connect(server.doors["broker"]) as sock:
            remoting_wire.create_topic(sock, TOPIC, QUEUES)
        publisher = Mute(server, numbers)
        publisher.start()
        until(lambda: len(publisher.ledger.acknowledged) > 100)
        inject = ["-e", "trace=fdatasync", "-e", "inject=fdatasync:error=EIO:when=1"]
        tracer = subprocess.Popen(["strace", "-f", "-qq", "-o", "/dev/null", *inject, "-p", str(process.pid)])
        try:
            code = ended(process)
        finally:
            tracer.terminate()
            tracer.wait(EXIT_S)
        assert code == 1
        assert "the store stopped" in process.log()
        assert "Input/output error" in process.log()
        publisher.join(EXIT_S)
        assert not publisher.is_alive()
        process.start()
        log = LogReader()
        log.read(server)
        findings = check_queues(publisher.ledger, log.queues)
        assert not findings, findings[:10]
    finally:
        server.stop()
