"""Binder without Docker: what repo2docker would read, install and start, followed step by step in this environment.

Source of the rules: repo2docker's documentation of configuration files; where binder/ exists only its files count, pip
runs in the root of the repository, and a visitor's link opens Voila inside jupyter server.
"""
import os
import re
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from processes import chromium, free_port, run, serving

PYTHONS = {"3.11", "3.12", "3.13", "3.14"}  # that repo2docker offers; without runtime.txt it takes 3.10
PIN = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)==([A-Za-z0-9.]+)")
PAGE = "voila/render/notebooks/01_step_explorer.ipynb"


@pytest.fixture(scope="module")
def project(root) -> dict:
    return tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]


@pytest.fixture(scope="module")
def pins(root) -> dict[str, str]:
    lines = [line for line in (root / "constraints.txt").read_text("utf-8").splitlines() if line and not line.startswith("#")]
    wrong = [line for line in lines if not PIN.fullmatch(line)]
    assert not wrong, f"constraints.txt holds plain name==version lines only, no addresses, paths or local versions: {wrong}"
    return {normal(PIN.fullmatch(line)[1]): PIN.fullmatch(line)[2] for line in lines}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_binder_holds_what_repo2docker_reads_and_nothing_that_outranks_it(root):
    assert {p.name for p in (root / "binder").iterdir()} == {"runtime.txt", "requirements.txt", "postBuild"}
    assert os.access(root / "binder" / "postBuild", os.X_OK)
    assert (root / "binder" / "postBuild").read_text().startswith("#!/bin/bash\n")


def test_python_of_the_image_is_offered_and_fits_the_package(root, project):
    version = re.fullmatch(r"python-(3\.\d+)\n", (root / "binder" / "runtime.txt").read_text())[1]
    assert version in PYTHONS
    assert SpecifierSet(project["requires-python"]).contains(version)


def test_every_direct_dependency_is_pinned_to_a_version_it_allows(project, pins):
    wanted = [*project["dependencies"], *(text for extra in project["optional-dependencies"].values() for text in extra)]
    for requirement in map(Requirement, wanted):
        pin = pins.get(normal(requirement.name))
        assert pin, f"constraints.txt lacks {requirement.name}; run make lock"
        assert requirement.specifier.contains(pin), f"constraints.txt pins {requirement.name} {pin}, pyproject.toml wants {requirement.specifier}"


def test_requirements_resolve_from_the_root_as_pip_reads_them(root):
    """`-c` is relative to its file, `-e .` to the working directory; with no index pip must be content with what is installed."""
    assert (root / "binder" / "requirements.txt").read_text() == "-c ../constraints.txt\n-e .\n"
    done = run(sys.executable, "-m", "pip", "install", "--dry-run", "--no-index", "--no-build-isolation", "-r", "binder/requirements.txt", cwd=root)
    assert "Would install" not in done.stdout.replace("Would install roofkit", ""), done.stdout


def test_post_build_check_passes(root, monkeypatch):
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"])
    assert "01_step_explorer.ipynb" in run("binder/postBuild", cwd=root).stdout


@pytest.mark.slow
@pytest.mark.browser
def test_link_opens_the_app_inside_jupyter_server(root, tmp_path):
    """A status alone proves nothing, Voila answers 200 even when a cell fails: wait for a dot in a figure."""
    browser, port, token = chromium(), free_port(), "visitor"
    command = [sys.executable, "-m", "jupyter_server", "--no-browser", "--allow-root", "--ServerApp.ip=127.0.0.1", f"--ServerApp.port={port}",
               f"--IdentityProvider.token={token}", f"--ServerApp.root_dir={root}"]
    env = {f"JUPYTER_{key}_DIR": str(tmp_path / key) for key in ("CONFIG", "RUNTIME", "DATA")}
    with serving(command, tmp_path / "log", root, env) as server:
        server.wait(lambda: server.get(f"http://127.0.0.1:{port}/api")[0] == 200, "answer")
        with ThreadPoolExecutor(1) as thread:  # a thread of its own: playwright runs once per thread, tests/browser has this one
            dots, errors = thread.submit(_dots, browser, f"http://127.0.0.1:{port}/{PAGE}?token={token}").result(120)
        assert dots > 0 and not errors, f"{errors}\n{server.output}"


def _dots(browser: str, url: str) -> tuple[int, list[str]]:
    from playwright.sync_api import sync_playwright

    errors = []
    with sync_playwright() as play:
        chrome = play.chromium.launch(executable_path=browser, args=["--no-sandbox", "--disable-gpu"])
        page = chrome.new_page()
        page.route(lambda address: "127.0.0.1" not in address and address.startswith("http"), lambda route: route.abort())
        page.on("pageerror", lambda error: errors.append(str(error)))
        assert page.goto(url).status == 200, "the page is not there"
        page.wait_for_selector(".bqplot .dot", state="attached", timeout=90_000)
        count = page.locator(".bqplot .dot").count()
        page.goto("about:blank")
        chrome.close()
    return count, errors
