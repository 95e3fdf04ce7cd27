"""Serve the notebooks with Voila on a free loopback port and drive them in headless Chromium."""
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import nbformat
import pytest

TESTS = Path(__file__).resolve().parents[1]
NOTEBOOKS = TESTS.parent / "notebooks"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update",
         "--disable-sync", "--hide-scrollbars"]
TOYS = {"toy": "step_view", "failing": "failing_view"}  # notebooks around the functions of tests/widgets_fake.py
TOY_CELL = "import widgets_fake as fake\nfrom roofkit_widgets import StepExplorer\napp = StepExplorer(fake.step_controls, fake.{view})\napp.widget"
PAINTED_MS = 90_000  # loaded machines take a while


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(item.fspath).parent == Path(__file__).parent:
            item.add_marker(pytest.mark.browser)


def no_browser(reason: str) -> None:
    if os.environ.get("ROOFKIT_REQUIRE_BROWSER") == "1":
        pytest.fail(f"ROOFKIT_REQUIRE_BROWSER=1, but {reason}")
    pytest.skip(reason)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_until_served(address: str, server: subprocess.Popen, log: Path) -> None:
    for _ in range(900):
        if server.poll() is not None:
            pytest.fail("voila ended:\n" + log.read_text())
        try:
            urllib.request.urlopen(f"{address}/voila/static/favicon.ico", timeout=2).close()
            return
        except urllib.error.HTTPError as answered:
            answered.close()
            return
        except OSError:
            time.sleep(0.1)
    pytest.fail("voila did not answer:\n" + log.read_text())


@pytest.fixture(scope="session")
def served(tmp_path_factory, browser):
    """Address of a server with the shipped notebooks and the toys."""
    site, log, port = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("voila") / "log.txt", free_port()
    for notebook in NOTEBOOKS.glob("*.ipynb"):
        shutil.copy(notebook, site)
    for name, view in TOYS.items():
        cell = nbformat.v4.new_code_cell(TOY_CELL.format(view=view))
        meta = {"title": f"toy page {name}", "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
        nbformat.write(nbformat.v4.new_notebook(cells=[cell], metadata=meta), site / f"{name}.ipynb")
    command = [sys.executable, "-m", "voila", str(site), "--no-browser", f"--port={port}", "--Voila.ip=127.0.0.1", "--show_tracebacks=True",
               "--MappingKernelManager.cull_idle_timeout=30", "--MappingKernelManager.cull_interval=5"]
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out, env={**os.environ, "PYTHONPATH": str(TESTS)}) as server:
        try:
            wait_until_served(f"http://127.0.0.1:{port}", server, log)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                server.kill()


@pytest.fixture(scope="session")
def browser():
    program = next((p for n in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(n))), None)
    if program is None:
        no_browser("there is no Chromium on this machine")
    sync_api = pytest.importorskip("playwright.sync_api") if os.environ.get("ROOFKIT_REQUIRE_BROWSER") != "1" else __import__("playwright.sync_api").sync_api
    with sync_api.sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=program, args=FLAGS)
        yield launched
        launched.close()


@pytest.fixture(scope="session")
def open_page(served, browser):
    """open_page("toy", "batch=64", width=390) -> a page whose figures are painted; `page.errors` are those of its scripts."""
    contexts = []

    def opened(notebook: str, query: str = "", width: int = 1440, height: int = 900, wait: str = ".rk-app .bqplot .dot"):
        context = browser.new_context(viewport={"width": width, "height": height}, accept_downloads=True)
        context.route(lambda url: not url.startswith(("http://127.0.0.1", "data:", "blob:")), lambda route: route.abort())
        contexts.append(context)
        page = context.new_page()
        page.errors = []
        page.on("pageerror", lambda error: page.errors.append(str(error)))
        page.goto(f"{served}/voila/render/{notebook}.ipynb?{query}")
        page.wait_for_selector(wait, state="attached", timeout=PAINTED_MS)
        page.wait_for_timeout(400)
        return page

    yield opened
    for context in contexts:
        context.close()
