"""The command `roofkit`: serve the apps, explain a step, list presets, measure, fit and judge. Room: doors.

Only words and printing here; what is printed comes from the rooms below. Everything heavy is imported in the command
that needs it. An input that is wrong ends in one line on stderr and exit code 2, never in a traceback.
"""
import argparse
import json
import os
import socket
import sys
import threading
import time
import webbrowser
from pathlib import Path

from roofkit.errors import RoofkitError

BAR = 24  # widest bar of `explain` [characters]


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit code: 0 done, 2 wrong input, 130 stopped by Ctrl-C."""
    args = _parser().parse_args(argv)
    try:
        args.run(args)
        sys.stdout.flush()
    except RoofkitError as error:
        print(f"roofkit: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # `roofkit list models | head` closed the pipe: nobody reads on
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="roofkit", description="What a language model's step costs on a machine, and why.")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_app(commands.add_parser("app", help="serve an app and open it in the browser"))
    _add_explain(commands.add_parser("explain", help="one forward step: time, where it goes, memory, assumptions"))
    lister = commands.add_parser("list", help="what there is: models, devices, clusters, apps")
    lister.add_argument("what", choices=("models", "devices", "clusters", "apps"))
    lister.set_defaults(run=_list)
    _add_measure(commands.add_parser("measure", help="time small kernels on this machine, fit them, report the error on held-out points"))
    _add_validate(commands.add_parser("validate", help="errors of the cost forms on measured rows that the fit never saw"))
    _add_calibrate(commands.add_parser("calibrate", help="fit a device's constants to measured rows, with held-out errors"))
    _add_predict(commands.add_parser("predict", help="measured rows beside what the shipped constants predict"))
    version = commands.add_parser("version", help="print the version")
    version.set_defaults(run=_version)
    return parser


# ---- list, version --------------------------------------------------------------------------------------------------


LISTED = {  # columns that `list` prints -> heading and unit
    "models": {"name": "name", "family": "family", "total_params": "parameters", "active_params": "active", "kv_bytes_per_token": "KV per token, B",
               "released": "released"},
    "devices": {"name": "name", "label": "device", "peak_bf16_flops_per_s": "bf16, FLOP/s", "peak_fp8_flops_per_s": "fp8, FLOP/s",
                "hbm_bytes_per_s": "memory, B/s", "memory_bytes": "memory, B", "confidence": "confidence"},
    "clusters": {"name": "name", "label": "machine", "device": "device", "devices": "devices", "scaleup_domain": "linked",
                 "scaleup_bytes_per_s": "each way, B/s", "scaleout_bytes_per_s": "between nodes, B/s", "confidence": "confidence"},
}
FOOTNOTES = {"devices": "Dense peaks. Confidence: A read in the maker's own document, B in an independent source, C not verified.",
             "clusters": "Bandwidth per device and direction. Confidence as for devices."}


def _list(args: argparse.Namespace) -> None:
    import roofkit as rk
    from roofkit.notebooks import list_apps

    if args.what == "apps":
        for name, path in list_apps().items():
            print(f"{name:24}{path.name}")
        return
    table = {"models": rk.list_architectures, "devices": rk.list_devices, "clusters": rk.list_clusters}[args.what]()
    columns = {key: heading for key, heading in LISTED[args.what].items() if key in table}
    rows = [list(columns.values()), *([_cell(key, row[key]) for key in columns] for _, row in table.iterrows())]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
    if args.what in FOOTNOTES:
        print(FOOTNOTES[args.what])


def _cell(key: str, value) -> str:
    from roofkit.units import si

    if isinstance(value, str):
        return value
    if value != value or key.endswith("_per_s") and not value:
        return "-"
    return si(float(value)) if key.endswith(("_per_s", "_bytes", "_params", "_per_token")) else f"{value:,.0f}"


def _version(args: argparse.Namespace) -> None:
    import roofkit as rk

    print(f"roofkit {rk.__version__}")


# ---- explain --------------------------------------------------------------------------------------------------------


def _add_explain(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", metavar="MODEL", help="preset, path to a config.json or its folder, or org/name on the Hub")
    add("device", metavar="DEVICE", help="device or cluster preset, e.g. h100-sxm-80gb or dgx-h100")
    add("--phase", choices=("decode", "prefill"), default="decode")
    add("--batch", type=int, default=1, metavar="N", help="sequences in the step (1)")
    add("--context", type=int, default=2048, metavar="N", help="decode: tokens already in the KV cache (2048)")
    add("--prompt", type=int, default=2048, metavar="N", help="prefill: tokens of each prompt (2048)")
    add("--cached", type=int, default=0, metavar="N", help="prefill: leading prompt tokens already cached (0)")
    for key, text in {"tp": "tensor", "pp": "pipeline", "ep": "expert", "dp": "data", "cp": "context"}.items():
        add(f"--{key}", type=int, default=1, metavar="N", help=f"{text} parallel ranks (1)")
    for key in ("weights", "activations", "kv"):
        add(f"--{key}", default=None, metavar="FORMAT", help="number format; default: as the checkpoint stores it")
    add("--cost-model", default="calibrated", choices=("calibrated", "simple", "ideal"))
    add("--engine", default=None, metavar="NAME", help="add the host time of a serving engine; default: device time only")
    add("--top", type=int, default=8, metavar="N", help="slowest operators to print (8)")
    add("--csv", action="store_true", help="print every operator as CSV instead")
    parser.set_defaults(run=_explain)


def _explain(args: argparse.Namespace) -> None:
    import roofkit as rk

    arch, machine = rk.load_architecture(args.model), _machine(args.device)
    plan = rk.Plan(args.tp, args.pp, args.ep, args.dp, args.cp, weights=args.weights, activations=args.activations, kv=args.kv)
    if args.phase == "decode":
        workload = rk.Decode(args.batch, args.context)
    else:
        workload = rk.Prefill(args.batch, args.prompt, args.cached)
    step = rk.estimate(arch, machine, plan, workload, cost_model=args.cost_model, engine=args.engine)
    if args.csv:
        step.ops.to_csv(sys.stdout, index=False)
        return
    print("\n".join(_heading(step) + _breakdown(step) + _slowest(step, args.top) + _memory(step) + _notes(step)))


def _machine(name: str):
    """A device preset or, where there is no such device, a cluster preset; an unknown name gets the device list's suggestion."""
    import roofkit as rk

    try:
        return rk.load_device(name)
    except rk.DataError as no_device:
        try:
            return rk.load_cluster(name)
        except rk.DataError:
            raise rk.DataError(f"{no_device} For machines see `roofkit list clusters`.") from None


def _heading(step) -> list[str]:
    from roofkit.units import percent, si

    plan, work = step.plan, step.workload
    ranks = "".join(f", {key.upper()} {getattr(plan, key)}" for key in ("tp", "pp", "ep", "dp", "cp") if getattr(plan, key) > 1)
    if work.phase == "decode":
        what = f"decode, batch {work.batch:,}, context {work.context_tokens:,}"
        rates = {"per user": f"{1 / step.time_s:,.4g} tok/s", "all users": f"{step.tok_per_s:,.0f} tok/s"}
    else:
        what, rates = f"prefill, batch {work.batch:,}, prompt {work.prompt_tokens:,}", {"prompt tokens": f"{step.tok_per_s:,.0f} tok/s"}
    figures = {"step time": f"{si(step.time_s, 's')}, {step.time_s / step.ideal_s:.2f} times its physical bound of {si(step.ideal_s, 's')}",
               **rates, "MFU, MBU": f"{percent(step.mfu)} of peak FLOP/s, {percent(step.mbu)} of memory bandwidth"}
    engine = f"engine {step.engine}" if step.engine else "device time only"
    return [f"{step.arch.name} on {step.cluster.device.label} ({step.cluster.label}): {what}{ranks}",
            f"weights {plan.weights}, activations {plan.activations}, KV {plan.kv}; cost model {step.cost_model} ({step.calibration}), {engine}", "",
            *(f"{label:16}{text}" for label, text in figures.items())]


def _breakdown(step) -> list[str]:
    from roofkit.tables import CATEGORY_LABELS
    from roofkit.units import percent, si

    lines = ["", "Where the time goes"]
    for key, seconds in step.breakdown().items():
        share = float(seconds) / float(step.time_s)
        if seconds > 0:
            lines.append(f"  {CATEGORY_LABELS[key]:24}{si(seconds, 's'):>9}{percent(share):>8}  {'█' * max(1, round(BAR * share))}")
    return lines


def _slowest(step, top: int) -> list[str]:
    from roofkit.units import percent, si

    lines = ["", "Slowest operators", f"  {'operator':28}{'calls':>6}{'time':>10}{'share':>8}  {'bound':9}what would help"]
    for op in step.ops.sort_values("time_s", ascending=False).head(max(0, top)).itertuples():
        lines.append(f"  {op.name:28}{op.count:>6,.0f}{si(op.time_s, 's'):>10}{percent(op.share):>8}  {op.bound:9}{op.hint}")
    return lines


def _memory(step) -> list[str]:
    from roofkit.units import gb

    need = step.memory
    lines = ["", "Memory of the fullest device"]
    lines += [f"  {key.replace('_', ' '):24}{gb(n_bytes):>12}" for key, n_bytes in need.series.items() if n_bytes]
    if need.fits:
        return [*lines, f"  fits with {gb(need.headroom)} to spare; up to {step.largest_batch():,} sequences"]
    return [*lines, f"  does not fit: {gb(-need.headroom)} too much; of this length {step.largest_batch():,} sequences fit"]


def _notes(step) -> list[str]:
    from roofkit.views.provenance import badges, notes

    texts = dict.fromkeys([*(f"{label}: {meaning}" for label, meaning in badges(step)), *notes(step)])  # each once, in order
    return ["", "Assumptions", *(f"  - {text}" for text in texts)] if texts else []


# ---- measure, validate, calibrate, predict --------------------------------------------------------------------------


def _add_measure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--out", metavar="PATH", help="FILE.csv: every point, the environment in FILE.json; else a folder: one CSV a kind in the uniform schema, environment.json")
    add("--budget", type=float, default=40.0, metavar="SECONDS", help="time for all points together (40)")
    add("--backend", choices=("auto", "numpy", "torch"), default="auto", help="auto: torch where it drives a GPU, else numpy")
    parser.set_defaults(run=_measure)


def _measure(args: argparse.Namespace) -> None:
    import roofkit as rk
    from roofkit.units import percent

    if args.out:
        _writable(args.out, folder=not args.out.endswith(".csv"))
    shown = (lambda done, kind: print(f"\r{percent(done):>6} {kind:10}", end="", file=sys.stderr)) if sys.stderr.isatty() else None
    report = rk.measure_this_machine(budget_s=args.budget, backend_name=args.backend, progress=shown)
    if shown:
        print("\r" + " " * 20 + "\r", end="", file=sys.stderr)
    env = report.environment
    print(f"{env['processor']}, {env['cores']} cores, {env['backend']} ({env['blas']}), {env['dtype']}: {len(report.points)} points in {report.wall_s:.0f} s\n")
    print(_errors(report.errors))
    print(f"\nworst kind on points the fit never saw: {percent(report.held_out_mape)} mean error")
    if args.out and args.out.endswith(".csv"):
        table, record = Path(args.out), Path(args.out).with_suffix(".json")
        _write(table, lambda path: report.points.to_csv(path, index=False, float_format="%.6g"))
        _write(record, lambda path: path.write_text(json.dumps(env, indent=1, default=str) + "\n", encoding="utf-8"))
        print(f"written: {table}, {record}")
    elif args.out:
        print("written:", ", ".join(map(str, _write(args.out, report.save))))


MEASURED = "table in the uniform schema (.csv, .parquet), a folder of them, or aiconfigurator-core where that package is installed"


def _add_source(parser: argparse.ArgumentParser, *, device_required: bool = False) -> None:
    add = parser.add_argument
    add("--device", metavar="NAME", required=device_required, help="device preset" if device_required else "only rows of this device preset; default: all")
    add("--kinds", metavar="LIST", help="only tables of these kinds, e.g. gemm,attention")
    add("--backend", metavar="LIST", help="aiconfigurator-core: trtllm, vllm, sglang; default: all")
    add("--backend-version", metavar="VERSION", help="aiconfigurator-core: version of the backend; default: the newest")


def _source(where: str, args: argparse.Namespace):
    from roofkit.evidence.sources import read_source

    lists = {key: text.split(",") if text else None for key, text in (("kinds", args.kinds), ("backends", args.backend))}
    return read_source(where, device=args.device, version=args.backend_version, **lists)


def _add_validate(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("file", metavar="FILE", help=MEASURED)
    add("--split", default="family", metavar="RULE", help="what is held out: family, head_dim, sizes, gpu, random, every_fourth; shipped: nothing is "
        "fitted, the package's constants as they are (family)")
    add("--seeds", type=int, default=1, metavar="N", help="seeds of the folds (1)")
    add("--csv", action="store_true", help="print the whole table as CSV, regimes included")
    _add_source(parser)
    parser.set_defaults(run=_validate)


def _validate(args: argparse.Namespace) -> None:
    import pandas as pd

    import roofkit as rk
    from roofkit.errors import MeasurementError
    from roofkit.units import percent

    if args.seeds < 1:
        raise MeasurementError(f"--seeds {args.seeds} is not possible; give at least 1")
    source, found, notes = _source(args.file, args), [], []
    for kind, frame in source.frames.items():
        try:
            found.append(rk.validate(frame, args.split, device=args.device, seeds=range(args.seeds)))
        except MeasurementError as error:
            if len(source.frames) == 1:
                raise
            notes.append(f"{kind}: {error}")
    if not found:
        raise MeasurementError("; ".join(notes))
    table = pd.concat([v.table for v in found], ignore_index=True)
    if args.csv:
        table.to_csv(sys.stdout, index=False, float_format="%.4g")
        return
    worst = max((v.worst for v in found), key=lambda row: row["mape"])
    print(_errors(table[table["regime"] == "all"].drop(columns=["regime"])))
    interval = f", 95 % of bootstraps {percent(worst['low'])} to {percent(worst['high'])}" if worst["low"] == worst["low"] else ""
    what = " ".join(str(worst[key]) for key in ("op", "class", "format", "stack") if worst[key])
    print(f"\nworst: {percent(worst['mape'])} mean error ({worst['n']:,} rows of {worst['families']} families{interval})\n       {what} on {worst['device']}, split {worst['split']}")
    _print_notes(notes)


def _add_calibrate(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--from", dest="source", required=True, metavar="SOURCE", help=MEASURED)
    _add_source(parser, device_required=True)
    add("--out", metavar="TOML", help="write the constants there, in the layout of data/roofkit_data/calibration")
    add("--train", choices=("split", "all"), default="split", help="split: constants from four fifths of the shape families, errors from the fifth; "
        "all: constants from all rows, errors from five-fold cross-validation, slower (split)")
    parser.set_defaults(run=_calibrate)


def _calibrate(args: argparse.Namespace) -> None:
    import roofkit as rk
    from roofkit.errors import MeasurementError
    from roofkit.evidence.calibrate import FITTED_KINDS
    from roofkit.evidence.sources import thinned
    from roofkit.units import percent

    if args.out:
        _writable(args.out)
    source = _source(args.source, args)
    thin = [thinned(frame) for kind, frame in source.frames.items() if kind in FITTED_KINDS]
    frames = [frame for frame, _ in thin]
    if not frames:
        raise MeasurementError(f"{args.source}: no table that can be fitted; kinds there: {', '.join(source.frames)}; kinds that can: {', '.join(FITTED_KINDS)}")
    print(f"fitting {sum(map(len, frames)):,} rows of {args.device}: {', '.join(sorted(f['kind'].iloc[0] for f in frames))}", file=sys.stderr)
    found = rk.calibrate(frames, args.device, source=source.said, train=args.train)
    print(_errors(found.errors.drop(columns=["device"])))
    loose = found.constants[found.constants["at_bound"]]
    print(f"\n{len(found.fits)} fits, {len(found.constants)} constants, {len(loose)} of them at a bound; worst error on families the fit never saw: "
          f"{percent(found.errors['mape'].max())}")
    _print_notes([*(note for _, note in thin if note), *found.skipped, *source.notes])
    print(f"written: {_write(args.out, found.write)}" if args.out else "not written; give --out FILE.toml")


def _add_predict(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help=MEASURED)
    parser.add_argument("--out", metavar="CSV", help="write the rows with their predictions there; - for stdout, without the summary")
    _add_source(parser)
    parser.set_defaults(run=_predict)


def _predict(args: argparse.Namespace) -> None:
    import pandas as pd

    import roofkit as rk
    from roofkit.errors import MeasurementError

    if args.out and args.out != "-":
        _writable(args.out)
    source = _source(args.file, args)
    if args.out and len(source.frames) > 1:
        raise MeasurementError(f"--out holds one kind of table, but {args.file} has {', '.join(source.frames)}; choose with --kinds")
    priced = [rk.predict(frame) for frame in source.frames.values()]
    if args.out == "-":
        priced[0].to_csv(sys.stdout, index=False, float_format="%.6g")
        return
    table = pd.concat([_ratios(rows) for rows in priced], ignore_index=True)
    print(_errors(table))
    if "constants" in table and (table["constants"] == "fitted").any():
        print("  fitted: constants of this device; where they were fitted to these very rows, that is no held-out error (see validate)")
    for reason, n in pd.concat([p.loc[p["calibration"] == "none", "note"] for p in priced]).value_counts().items():
        print(f"  {n:,} rows not priced: {reason or 'no form for this format on this device'}")
    if args.out:
        _write(args.out, lambda path: priced[0].to_csv(path, index=False, float_format="%.6g"))
        print(f"written: {args.out}")


def _ratios(rows):
    """Errors of priced rows by device, phase or op, format and kind of constants."""
    import numpy as np
    import pandas as pd

    from roofkit.evidence.calibrate import summary
    from roofkit.evidence.measurements import target_of

    target, kind = target_of(rows), rows["kind"].iloc[0]
    predicted = rows["predicted_ms" if target.endswith("_ms") else "predicted_us"]
    ratio = np.log(predicted / rows[target])
    named = {"kind": kind, **{key: rows[name] for key, name in (("op", "op"), ("phase", "phase"), ("format", "dtype"), ("kv", "kv_dtype"), ("stack", "source"))
                              if name in rows}}
    keyed = pd.DataFrame({"device": rows["device"], **named, "constants": rows["calibration"], "ratio": ratio, "inside": rows["in_domain"]}).fillna({"format": "-"})
    groups = keyed[keyed["ratio"].notna()].groupby([c for c in keyed if c not in ("ratio", "inside")])
    out = pd.DataFrame([{**dict(zip(groups.keys, key, strict=True)), "n": len(part), "in_domain": part["inside"].mean(), **summary(part["ratio"].to_numpy())}
                        for key, part in groups])
    if len(out) and not out["in_domain"].any():  # no fitted range is known here: nothing to tell
        out = out.drop(columns="in_domain")
    return out if len(out) else pd.DataFrame([{"device": rows["device"].iloc[0], "kind": kind, "n": 0}])


SHARES = ("mape", "low", "high", "median", "bias", "p90", "seed_sd", "in_domain")


def _errors(table) -> str:
    """A table of errors as text, shares as percentages, empty columns left out."""
    from roofkit.units import percent

    shown = table.dropna(axis=1, how="all")
    shown = shown.loc[:, [c for c in shown if not (shown[c].astype(str) == "").all()]]
    return shown.assign(**{c: [percent(x) if x == x else "-" for x in shown[c]] for c in SHARES if c in shown}).fillna("-").to_string(index=False)


def _print_notes(notes) -> None:
    for note in notes:
        print(f"  left out: {' '.join(str(note).split())}")


def _writable(path: str, folder: bool = False) -> None:
    """Refuse a place that cannot be written before the work starts, not after it."""
    place = Path(path).absolute()
    held_by = next(parent for parent in place.parents if parent.exists())
    if (place.is_file() if folder else place.is_dir()) or not held_by.is_dir() or not os.access(held_by, os.W_OK):
        raise RoofkitError(f"cannot write {'into ' if folder else ''}{path}; choose another place with --out")


def _write(path: str | Path, write):
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        return write(Path(path))
    except OSError as error:
        raise RoofkitError(f"cannot write {path}: {error.strerror or error}") from None


# ---- app ------------------------------------------------------------------------------------------------------------


def _add_app(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("name", nargs="?", default="explorer", metavar="NAME", help="which app (explorer); `roofkit list apps` names them")
    add("--port", type=int, default=0, metavar="N", help="default: a free one")
    add("--ip", default="127.0.0.1", metavar="ADDRESS", help="address to listen on (127.0.0.1: this machine only)")
    add("--no-browser", action="store_true", help="only print the address")
    parser.set_defaults(run=_app)


def _app(args: argparse.Namespace) -> None:
    from roofkit.notebooks import find_app, notebook_folder

    folder = notebook_folder()
    notebook = find_app(args.name, folder)
    try:
        from voila.app import main as serve
    except ImportError as error:
        raise RoofkitError(f"the apps need voila, which this environment lacks ({error}); pip install voila") from None
    port = _free_port(args.ip, args.port)
    host = "127.0.0.1" if args.ip in ("", "0.0.0.0", "::") else args.ip
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}/voila/render/{notebook.name}"
    if host != "localhost" and not host.startswith("127.") or host != args.ip:
        print("roofkit: no password protects this server: whoever reaches the port can use it", file=sys.stderr)
    threading.Thread(target=_announce, args=(host, port, url, not args.no_browser), daemon=True).start()
    serve([str(folder), "--no-browser", f"--Voila.ip={args.ip}", f"--port={port}", "--Voila.port_retries=0",
           "--Voila.log_level=ERROR",
           # a kernel outlives its browser tab: stop it after five idle minutes; a page still open keeps its own
           "--MappingKernelManager.cull_idle_timeout=300", "--MappingKernelManager.cull_interval=30"])


def _free_port(ip: str, port: int) -> int:
    """`port` if nobody listens there, or a free one for 0."""
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((ip, port))
            return probe.getsockname()[1]
    except (OSError, OverflowError) as error:
        raise RoofkitError(f"cannot listen on {ip} port {port} ({error}); leave --port out to get a free one") from None


def _announce(host: str, port: int, url: str, open_browser: bool) -> None:
    """Print the address once the server answers, and open it."""
    for _ in range(600):
        try:
            socket.create_connection((host, port), timeout=1).close()
            break
        except OSError:
            time.sleep(0.1)
    print(f"roofkit: serving {url}\n         Ctrl-C stops the server", flush=True)
    if open_browser:
        webbrowser.open(url)  # False where there is no browser: the address is printed
