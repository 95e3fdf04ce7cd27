"""Helpers of the tests that run commands and servers: every process is stopped, every failure shows its output."""
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest


class Served:
    """A server process under test: its output as text, and pages fetched from it."""

    def __init__(self, process: subprocess.Popen, log: Path) -> None:
        self.process, self.log = process, log

    @property
    def output(self) -> str:
        return self.log.read_text("utf-8", errors="replace")

    def wait(self, done, what: str, seconds: float = 60) -> object:
        """`done()` as soon as it is true; fails with the server's output when the process ends or time is up."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if answer := done():
                return answer
            if self.process.poll() is not None:
                pytest.fail(f"the server ended with {self.process.returncode} before {what}:\n{self.output}")
            time.sleep(0.1)
        pytest.fail(f"no {what} within {seconds} s:\n{self.output}")

    @staticmethod
    def get(url: str, seconds: float = 60) -> tuple[int, str]:
        """Status and text of a page; (0, reason) when nothing answers."""
        try:
            with urllib.request.urlopen(url, timeout=seconds) as reply:
                return reply.status, reply.read().decode("utf-8", errors="replace")
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode("utf-8", errors="replace")
        except OSError as error:
            return 0, str(error)


def _heed_interrupts() -> None:
    """A shell that starts the tests in the background makes them ignore Ctrl-C, and their children inherit it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def serving(command: list[str], log: Path, cwd: Path, env: dict[str, str] | None = None):
    """Run a server for the length of a `with` block."""
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, cwd=cwd,
                                   env=os.environ | (env or {}), preexec_fn=_heed_interrupts)
    try:
        yield Served(process, log)
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def run(*command: str | Path, cwd: Path, check: bool = True, seconds: float = 120) -> subprocess.CompletedProcess:
    """Run a command to its end; with `check`, fail with its output when it fails."""
    done = subprocess.run([str(c) for c in command], cwd=cwd, capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL)
    if check and done.returncode:
        pytest.fail(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def chromium() -> str:
    """Path of the browser; skips the test where there is none, fails it where ROOFKIT_REQUIRE_BROWSER says there must be."""
    found = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)
    if found is None and os.environ.get("ROOFKIT_REQUIRE_BROWSER"):
        pytest.fail("ROOFKIT_REQUIRE_BROWSER is set and no Chromium is installed: apt-get install chromium")
    return found or pytest.skip("no Chromium on this machine: apt-get install chromium")
