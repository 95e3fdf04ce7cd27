"""The command line: what it prints, how it refuses, and that importing roofkit stays light."""
import io
import re
import socket
import subprocess
import sys

import pandas as pd
import pytest
from processes import run

import roofkit as rk
from roofkit import cli
from roofkit.notebooks import find_app, list_apps

H100 = ["explain", "llama-3.1-8b", "h100-sxm-80gb"]


def says(capsys, *argv: str) -> str:
    assert cli.main(list(argv)) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def test_version_is_that_of_the_package(capsys):
    assert says(capsys, "version") == f"roofkit {rk.__version__}\n"


@pytest.mark.parametrize("what, names", [("models", rk.list_architectures), ("devices", rk.list_devices), ("clusters", rk.list_clusters)])
def test_list_prints_every_preset(capsys, what, names):
    printed = says(capsys, "list", what)
    assert not set(names()["name"]) - set(printed.split())
    assert max(map(len, printed.splitlines())) < 160


def test_explain_prints_the_step_it_estimates(capsys):
    printed = says(capsys, *H100, "--batch", "32", "--context", "2048")
    step = rk.estimate(rk.load_architecture("llama-3.1-8b"), rk.load_device("h100-sxm-80gb"), rk.Plan(), rk.Decode(32, 2048))
    assert re.search(rf"step time +{step.time_s * 1e3:.3g} ms", printed)
    slowest = step.ops.sort_values("time_s", ascending=False)["name"].iloc[0]
    assert re.search(rf"would help\n +{slowest} ", printed)
    for heading in ("Where the time goes", "Slowest operators", "Memory of the fullest device", "fits with", "Assumptions"):
        assert heading in printed


@pytest.mark.parametrize("extra", [
    ["--phase", "prefill", "--prompt", "4096", "--cached", "1024"], ["--tp", "2"], ["--cost-model", "ideal"], ["--cost-model", "simple", "--top", "0"],
    ["--weights", "fp8", "--activations", "fp8", "--kv", "fp8"], ["--engine", "vllm"],
], ids=" ".join)
def test_explain_takes_every_option(capsys, extra):
    assert "step time" in says(capsys, *H100, *extra)


def test_explain_takes_a_machine_and_says_what_does_not_fit(capsys):
    assert "DGX H100" in says(capsys, "explain", "llama-3.1-70b", "dgx-h100", "--tp", "8")
    assert "does not fit" in says(capsys, "explain", "llama-3.1-70b", "h100-sxm-80gb")


def test_csv_holds_every_operator(capsys):
    ops = pd.read_csv(io.StringIO(says(capsys, *H100, "--csv")))
    step = rk.estimate(rk.load_architecture("llama-3.1-8b"), rk.load_device("h100-sxm-80gb"), rk.Plan(), rk.Decode(1, 2048))
    assert list(ops["name"]) == list(step.ops["name"])
    assert ops["time_s"].sum() == pytest.approx(step.device_s)


WRONG = [  # arguments, what the one line names
    (["explain", "llama-3.1-9b", "h100-sxm-80gb"], "llama-3.1-8b"), (["explain", "llama-3.1-8b", "h100-sxm-80g"], "h100-sxm-80gb"),
    ([*H100, "--tp", "3"], "3"), ([*H100, "--batch", "0"], "batch"), ([*H100, "--weights", "fp9"], "fp9"), ([*H100, "--engine", "no"], "no"),
    (["app", "step_explorre"], "step_explorer"), (["app", "--port", "99999"], "--port"),
]


@pytest.mark.parametrize("argv, named", WRONG, ids=[" ".join(argv) for argv, _ in WRONG])
def test_wrong_input_is_one_line_and_exit_code_2(capsys, argv, named):
    assert cli.main(argv) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err.startswith("roofkit: ") and named in err


@pytest.mark.parametrize("argv", [[], ["explode"], ["list"], ["explain", "llama-3.1-8b"], [*H100, "--batch", "many"]], ids=" ".join)
def test_wrong_usage_prints_the_usage_and_exit_code_2(capsys, argv):
    with pytest.raises(SystemExit) as stop:
        cli.main(argv)
    assert stop.value.code == 2 and capsys.readouterr().err.startswith("usage: roofkit")


def test_port_in_use_is_refused(capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert cli.main(["app", "--no-browser", "--port", str(taken.getsockname()[1])]) == 2
    assert "free one" in capsys.readouterr().err


def test_closed_pipe_is_quiet(root):
    process = subprocess.Popen([sys.executable, "-m", "roofkit", "list", "devices"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=root)
    process.stdout.close()  # as `roofkit list devices | head -0` does
    with process.stderr:
        assert process.stderr.read() == b""
    assert process.wait(60) == 0


@pytest.mark.parametrize("name", ["step_explorer", "step-explorer", "explorer", "01_step_explorer", "01_step_explorer.ipynb"])
def test_app_names_a_person_may_type(name):
    assert find_app(name).name == "01_step_explorer.ipynb"


def test_app_names_in_an_unknown_folder(tmp_path):
    for name in ("01_step_explorer", "02_design_space", "03_space_walk"):
        (tmp_path / f"{name}.ipynb").touch()
    assert list(list_apps(tmp_path)) == ["step_explorer", "design_space", "space_walk"]
    assert find_app("walk", tmp_path).stem == "03_space_walk"
    with pytest.raises(rk.RoofkitError, match="02_design_space or 03_space_walk"):
        find_app("space", tmp_path)
    with pytest.raises(rk.RoofkitError, match="choose one of step_explorer"):
        find_app("zzz", tmp_path)


HEAVY = ("roofkit_widgets", "ipywidgets", "bqplot", "voila", "IPython", "huggingface_hub", "scipy", "sklearn", "requests", "httpx")


def test_import_loads_nothing_heavy(root):
    code = f"import sys, roofkit; print([m for m in {HEAVY!r} if m in sys.modules])"
    assert run(sys.executable, "-c", code, cwd=root).stdout.strip() == "[]"


def test_import_adds_little_to_numpy_and_pandas(root):
    """Target 0.25 s; CPU seconds, so a busy machine does not fail it. `make bench` prints the figure."""
    code = "import time, numpy, pandas; start = time.process_time(); import roofkit; print(time.process_time() - start)"
    assert any(float(run(sys.executable, "-c", code, cwd=root).stdout) < 0.25 for _ in range(3))


def test_every_public_name_exists():
    assert sorted(rk.__all__) == rk.__all__ and len(set(rk.__all__)) == len(rk.__all__)
    assert all(hasattr(rk, name) for name in rk.__all__)
