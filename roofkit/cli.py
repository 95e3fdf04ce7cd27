"""The command `roofkit`: serve the apps, explain a step, list presets. Room: doors.

Only words and printing here; what is printed comes from the rooms below. Everything heavy is imported in the command
that needs it. An input that is wrong ends in one line on stderr and exit code 2, never in a traceback.
"""
import argparse
import os
import socket
import sys
import threading
import time
import webbrowser

from roofkit.errors import RoofkitError

BAR = 24  # widest bar of `explain` [characters]


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit code: 0 done, 2 wrong input, 130 stopped by Ctrl-C."""
    args = _parser().parse_args(argv)
    try:
        args.run(args)
        sys.stdout.flush()
    except RoofkitError as error:
        print(f"roofkit: {error}", file=sys.stderr)
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
    version = commands.add_parser("version", help="print the version")
    version.set_defaults(run=_version)
    return parser


# ---- list, version --------------------------------------------------------------------------------------------------


def _list(args: argparse.Namespace) -> None:
    import roofkit as rk
    from roofkit.notebooks import list_apps

    if args.what == "apps":
        for name, path in list_apps().items():
            print(f"{name:24}{path.name}")
        return
    table = {"models": rk.list_architectures, "devices": rk.list_devices, "clusters": rk.list_clusters}[args.what]()
    print(table.to_string(index=False, max_colwidth=60))


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
        add(f"--{key}", default="bf16", metavar="FORMAT", help="number format (bf16)")
    add("--cost-model", default="calibrated", choices=("calibrated", "simple", "ideal"))
    add("--engine", default=None, metavar="NAME", help="add the host time of a serving engine; default: device time only")
    add("--top", type=int, default=8, metavar="N", help="slowest operators to print (8)")
    add("--csv", action="store_true", help="print every operator as CSV instead")
    parser.set_defaults(run=_explain)


def _explain(args: argparse.Namespace) -> None:
    import roofkit as rk

    arch = rk.load_architecture(args.model)
    machine = _machine(args.device)
    plan = rk.Plan(args.tp, args.pp, args.ep, args.dp, args.cp, weights=args.weights, activations=args.activations, kv=args.kv)
    if args.phase == "decode":
        workload = rk.Decode(args.batch, args.context)
    else:
        workload = rk.Prefill(args.batch, args.prompt, args.cached)
    step = rk.estimate(arch, machine, plan, workload, cost_model=args.cost_model, engine=args.engine)
    if args.csv:
        step.ops.to_csv(sys.stdout, index=False)
        return
    print("\n".join(_heading(args, arch, machine, step) + _breakdown(step) + _slowest(step, args.top) + _memory(step)
                    + _assumptions(arch, step)))


def _machine(name: str):
    """A cluster preset or a device preset; an unknown name gets the suggestion of the device list."""
    import roofkit as rk

    clusters = rk.list_clusters()
    return rk.load_cluster(name) if name in set(clusters["name"]) else rk.load_device(name)


def _heading(args: argparse.Namespace, arch, machine, step) -> list[str]:
    from roofkit.units import si

    ranks = ", ".join(f"{key.upper()} {getattr(args, key)}" for key in ("tp", "pp", "ep", "dp", "cp") if getattr(args, key) > 1)
    if args.phase == "decode":
        work, rate = f"decode, batch {args.batch:,}, context {args.context:,}", args.batch / step.time_s
        extra = [f"per user        {si(1 / step.time_s, 'tok/s')}", f"all users       {si(rate, 'tok/s')}"]
    else:
        work, tokens = f"prefill, batch {args.batch:,}, prompt {args.prompt:,}", args.batch * (args.prompt - args.cached)
        extra = [f"prompt tokens   {si(tokens / step.time_s, 'tok/s')}"]
    formats = f"weights {args.weights}, activations {args.activations}, KV {args.kv}"
    return [f"{arch.name} on {machine.label or machine.name}: {work}{', ' + ranks if ranks else ''}",
            f"{formats}; cost model {args.cost_model}{', engine ' + args.engine if args.engine else ', device time only'}", "",
            f"step time       {si(step.time_s, 's')}", *extra]


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
        lines.append(f"  {op.name:28}{op.count:>6}{si(op.time_s, 's'):>10}{percent(op.share):>8}  {op.bound:9}{op.hint}")
    return lines


def _memory(step) -> list[str]:
    from roofkit.units import gb

    lines = ["", "Memory of the fullest device"]
    lines += [f"  {str(key).replace('_', ' '):24}{gb(n_bytes):>12}" for key, n_bytes in step.memory.items() if n_bytes > 0]
    verdict = f"fits, {gb(step.memory.headroom)} left" if step.memory.fits else f"does not fit: {gb(-step.memory.headroom)} too much"
    return [*lines, f"  {verdict}"]


def _assumptions(arch, step) -> list[str]:
    texts = dict.fromkeys([*arch.assumptions, *step.assumptions])  # each once, in order
    return ["", "Assumptions", *(f"  - {text}" for text in texts)] if texts else []


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
