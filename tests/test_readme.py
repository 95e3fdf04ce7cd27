"""The README keeps its word: its Python runs, its links lead somewhere, its commands exist."""
import re
import subprocess
import sys

import pytest

PAGES = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"]


def test_the_ten_lines_run(root):
    first, *more = re.findall(r"```python\n(.*?)```", (root / "README.md").read_text("utf-8"), re.DOTALL)
    assert len([line for line in first.splitlines() if line.strip()]) <= 10
    done = subprocess.run([sys.executable, "-W", "error", "-c", "\n".join([first, *more])], capture_output=True, text=True, cwd=root, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "times the physical bound" in done.stdout and "ms to the first token" in done.stdout


@pytest.mark.parametrize("page", PAGES)
def test_relative_links_lead_to_files(root, page):
    links = re.findall(r"\]\(([^)#\s]+)\)", (root / page).read_text("utf-8"))
    missing = [link for link in links if "://" not in link and not (root / link).exists()]
    assert not missing, f"{page} links to {missing}"


def test_make_commands_exist(root):
    targets = set(re.findall(r"^([a-z]+):", (root / "Makefile").read_text("utf-8"), re.MULTILINE))
    for page in PAGES:
        used = set(re.findall(r"(?:^|`)make ([a-z]+)", (root / page).read_text("utf-8"), re.MULTILINE))
        assert used <= targets, f"{page} names make commands that the Makefile lacks: {used - targets}"


def test_the_address_of_the_published_repository_is_written_once(root):
    assert sum((root / page).read_text("utf-8").count("mybinder.org/v2/gh/") for page in PAGES) == 1
