"""AIConfigurator's tables in our schema: kernel times that the PyPI package aiconfigurator-core ships. Room: evidence.

Source: NVIDIA, github ai-dynamo/aiconfigurator, package aiconfigurator-core (checked with 0.12.0), Apache-2.0. Nothing of it lies in
roofkit: the package is found where the user installed it, its files are read and its code is never run. Layout and columns:

    systems/data/<system>/<family>/<backend>/<version>/<table>.parquet, e.g. h200_sxm/gemm/trtllm/1.3.0rc20/gemm_perf.parquet

    gemm_perf                    gemm_dtype m n k -> dtype m n k (activations x weight, as ours)
    context_attention_perf       batch_size num_heads num_key_value_heads head_dim window_size attn_dtype kv_cache_dtype; q_len = isl,
    generation_attention_perf      kv_len = isl + step (decode: isl 1, step tokens cached before it); no window_size column = full
    context_mla_perf, generation_mla_perf   as attention; num_heads is already per rank, whatever tp_size says
    moe_perf                     num_tokens hidden_size inter_size topk num_experts moe_tp_size moe_ep_size distribution, kernel_source -> kernel
    custom_allreduce_perf        message_size counts ELEMENTS of 2 bytes, so bytes = 2 x message_size; kernel_source tells graph from eager
    nccl_perf                    message_size counts elements of nccl_dtype; `half` rows only: int8 rows are the same bytes once more.
                                 bytes = the tensor of all_reduce, the whole (n x per-rank) buffer otherwise, as nccl-tests counts

`latency` is in milliseconds everywhere, ours in us. Rows repeated within a file (a shape timed in two runs) become their median; where
one stack timed a shape with two kernels the faster counts, but for MoE, whose schema names the kernel. Files copied from another
backend (column `framework`) are left out. All ranks share one fast link domain, so `nodes` is 1. Not read: module tables (`*_module_perf`:
attention with its projections), wide-EP, DeepEP, sparse and linear attention.
"""
import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path

import pandas as pd

from roofkit.errors import MeasurementError
from roofkit.evidence.measurements import FORMATS, KNOWN_FORMATS, SCHEMAS, device_name, resolve_device
from roofkit.hardware.presets import list_devices

PACKAGE = "aiconfigurator-core"
KINDS = ("gemm", "attention", "mla", "moe", "collective")
BACKENDS = ("trtllm", "vllm", "sglang")
SYSTEMS = {"a100_sxm": "A100-SXM-80GB", "h100_sxm": "H100-SXM", "h200_sxm": "H200-SXM", "b200_sxm": "B200-SXM", "b300_sxm": "B300-SXM", "gb200": "GB200",
           "gb300": "GB300", "l40s": "L40S", "rtx_pro_6000_server": "RTX-PRO-6000", "b60": "Arc-B60"}  # system -> gpu as our tables spell it
_ATTENTION = {"batch": "batch_size", "heads": "num_heads", "kv_heads": "num_key_value_heads", "head_dim": "head_dim", "q_len": "isl",
              "dtype": "attn_dtype", "kv_dtype": "kv_cache_dtype"}
_MLA = {"batch": "batch_size", "heads": "num_heads", "q_len": "isl", "dtype": "mla_dtype", "kv_dtype": "kv_cache_dtype"}
_REDUCE = {"op": "op_name", "algo": "kernel_source", "ranks": "num_gpus", "bytes": "message_size"}
TABLES: dict[str, tuple[str, str, dict[str, str]]] = {  # file -> our kind, phase, our column -> theirs
    "gemm_perf": ("gemm", "", {"dtype": "gemm_dtype", "m": "m", "n": "n", "k": "k"}),
    "context_attention_perf": ("attention", "prefill", _ATTENTION), "generation_attention_perf": ("attention", "decode", _ATTENTION),
    "context_mla_perf": ("mla", "prefill", _MLA), "generation_mla_perf": ("mla", "decode", _MLA),
    "moe_perf": ("moe", "", {"dtype": "moe_dtype", "tokens": "num_tokens", "hidden": "hidden_size", "inter": "inter_size", "topk": "topk",
                             "experts": "num_experts", "tp": "moe_tp_size", "ep": "moe_ep_size", "distribution": "distribution", "kernel": "kernel_source"}),
    "custom_allreduce_perf": ("collective", "", _REDUCE), "nccl_perf": ("collective", "", _REDUCE),
}
_DTYPES = {**FORMATS, "sq": "w8a8_int8", "half": "bf16"}  # NCCL moves the bytes of `half`; ours calls two-byte collectives bf16


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """Tables of one device. frames: kind -> rows in our schema;  notes: what was left out, in words;  source: for provenance."""

    frames: dict[str, pd.DataFrame]
    notes: tuple[str, ...]
    source: str


def read_tables(device: str, *, root: str | Path | None = None, kinds: Iterable[str] = KINDS, backends: Iterable[str] = BACKENDS,
                version: str | None = None) -> Tables:
    """Rows of a device from the installed package.

    device    preset name; `systems` lists those with data
    root      folder that holds systems/data; None = the installed aiconfigurator-core
    version   of the backend, e.g. "1.3.0rc20"; None = that of the backend's newest GEMM table, or the newest where a table lacks it
    NCCL collectives come with any backend, from the newest NCCL. Raises MeasurementError where the package, the device, the version
    or pyarrow is missing, or where files are Git LFS pointers or of an unknown layout.
    """
    root = find_package() if root is None else Path(root)
    wanted, names = _known(kinds, KINDS, "kind"), _known(backends, BACKENDS, "backend")
    system = _system(device, root)
    parts: dict[str, list[pd.DataFrame]] = {}
    notes: list[str] = []
    for path in _chosen(root / "systems" / "data" / system, wanted, names, version):
        kind = TABLES[path.stem][0]
        rows, said = _rows(path, SYSTEMS[system])
        notes += [f"{'/'.join(path.parts[-4:])}: {text}" for text in said]
        if len(rows):
            parts.setdefault(kind, []).append(rows)
    if not parts:
        raise MeasurementError(f"{PACKAGE} holds no {', '.join(wanted)} rows of {device}" + (f" in version {version!r}" if version else "")
                               + f" for {', '.join(names)}; it has: {_held(root / 'systems' / 'data' / system)}")
    frames = {kind: pd.concat(parts[kind], ignore_index=True) for kind in KINDS if kind in parts}
    return Tables(frames, tuple(notes), f"fit to AIConfigurator collector tables, {_release(root)} (Apache-2.0, NVIDIA)")


def find_package() -> Path:
    """Folder of the installed package. Raises MeasurementError where it is not installed."""
    spec = util.find_spec("aiconfigurator_core")
    if spec is None or not spec.submodule_search_locations:
        raise MeasurementError(f"the tables of {PACKAGE} are not installed; pip install {PACKAGE}, or give the folder that holds its systems/data")
    return Path(next(iter(spec.submodule_search_locations)))


def is_tree(folder: str | Path) -> bool:
    """Whether a folder is laid out like the package."""
    return (Path(folder) / "systems" / "data").is_dir()


def systems(root: str | Path | None = None) -> dict[str, str]:
    """System folders that hold a table we read -> preset name."""
    data = (find_package() if root is None else Path(root)) / "systems" / "data"
    known = list_devices()["name"].tolist()
    held = {s: resolve_device(device_name(gpu), known) for s, gpu in SYSTEMS.items() if any((data / s).rglob("*_perf.parquet"))}
    return {system: preset for system, preset in held.items() if preset}


def _known(asked: Iterable[str], allowed: tuple[str, ...], what: str) -> list[str]:
    asked = [asked] if isinstance(asked, str) else list(asked)
    unknown = [x for x in asked if x not in allowed]
    if unknown:
        raise MeasurementError(f"{what} {', '.join(map(repr, unknown))} is not known; use {', '.join(allowed)}")
    return asked


def _system(device: str, root: Path) -> str:
    held = systems(root)
    found = next((s for s, preset in held.items() if preset == device), None)
    if found is None:
        raise MeasurementError(f"{PACKAGE} has no tables of {device!r} under {root.name}/systems/data; devices there: {', '.join(held.values()) or 'none'}")
    return found


def _chosen(folder: Path, kinds: list[str], backends: list[str], version: str | None) -> list[Path]:
    """One file per table and backend: of the version asked for, of the backend's newest GEMM table, or else the newest."""
    out = []
    for backend in (*backends, "nccl"):
        of_gemm = _newest(path.parent.name for path in folder.glob(f"*/{backend}/*/gemm_perf.parquet"))
        for table in (t for t, (kind, _, _) in TABLES.items() if kind in kinds and (t == "nccl_perf") == (backend == "nccl")):
            files = {path.parent.name: path for path in folder.glob(f"*/{backend}/*/{table}.parquet")}
            asked = None if backend == "nccl" else version
            name = asked or (of_gemm if of_gemm in files else _newest(files))
            if name in files:
                out.append(files[name])
    return out


def _newest(versions: Iterable[str]) -> str | None:
    """The highest version: 1.3.0 after 1.3.0rc20, 0.5.6.post2 after 0.5.6."""
    def key(text: str) -> list[tuple]:
        words = re.findall(r"\d+|[a-z]+", text.lower())
        return [(1, int(w), "") if w.isdigit() else (0.7 if w == "post" else 0, 0, w) for w in words] + [(0.5, 0, "")]

    return max(versions, key=key, default=None)


def _held(folder: Path) -> str:
    return ", ".join(sorted({f"{p.parent.parent.name} {p.parent.name}" for p in folder.rglob("*.parquet") if p.stem in TABLES}))


def _release(root: Path) -> str:
    if root.name == "aiconfigurator_core":
        try:
            return f"PyPI {PACKAGE} {metadata.version(PACKAGE)}"
        except metadata.PackageNotFoundError:
            pass
    return f"a copy of {PACKAGE}"


def _rows(path: Path, gpu: str) -> tuple[pd.DataFrame, list[str]]:
    """Rows of one file in our schema, and what was left out of it."""
    kind, phase, columns = TABLES[path.stem]
    backend, version = path.parts[-3], path.parts[-2]
    theirs = _parquet(path)
    lacks = [c for c in (*columns.values(), "latency") if c not in theirs]
    if lacks:
        raise MeasurementError(f"{'/'.join(path.parts[-5:])} lacks the columns {', '.join(lacks)}: this release of {PACKAGE} has another layout "
                               "than 0.12.0, which roofkit knows")
    notes = []
    if backend != "nccl" and "framework" in theirs:  # NCCL's rows name the framework whose collector ran
        own = theirs["framework"].astype(str).str.lower() == backend
        notes += [f"{int((~own).sum())} rows copied from another backend left out"] if not own.all() else []
        theirs = theirs[own]
    if backend == "nccl" and "nccl_dtype" in theirs:
        theirs = theirs[theirs["nccl_dtype"] == "half"]
    rows = pd.DataFrame({ours: theirs[name] for ours, name in columns.items()}).assign(gpu=gpu, time_us=theirs["latency"].astype(float) * 1e3)
    if phase:
        rows = rows.assign(phase=phase, kv_len=theirs["isl"] + theirs["step"], kv_dtype=rows["kv_dtype"].replace(_DTYPES))
    if kind == "attention":
        rows = rows.assign(window=theirs.get("window_size", 0), kv_heads=rows["kv_heads"].where(rows["kv_heads"] > 0, rows["heads"]))
    if kind == "collective":
        name = f"nccl-{version}" if backend == "nccl" else None
        rows = rows.assign(nodes=1, bytes=2 * rows["bytes"], algo=name or rows["algo"].map(lambda source: _algo(backend, str(source))))
    if "dtype" in rows:
        rows["dtype"] = rows["dtype"].replace(_DTYPES)
        unknown = ~rows["dtype"].isin(KNOWN_FORMATS)
        notes += [f"{int(unknown.sum())} rows of {', '.join(sorted(rows.loc[unknown, 'dtype'].unique()))} left out"] if unknown.any() else []
        rows = rows[~unknown]
    broken = ~(rows["time_us"] > 0)
    notes += [f"{int(broken.sum())} rows without a time left out"] if broken.any() else []
    return _once(rows[~broken], kind, theirs["kernel_source"]).assign(source=f"aic:{backend}-{version}"), notes


def _once(rows: pd.DataFrame, kind: str, kernel: pd.Series) -> pd.DataFrame:
    """Every shape once: the median of a kernel's repeats, the fastest of several kernels."""
    key = [c for c in SCHEMAS[kind] if c != "time_us"]
    if not rows.duplicated(key).any():
        return rows[[*key, "time_us"]].reset_index(drop=True)
    medians = rows.assign(_kernel=kernel.reindex(rows.index).astype(str)).groupby([*key, "_kernel"], sort=False, as_index=False)["time_us"].median()
    return medians.groupby(key, sort=False, as_index=False)["time_us"].min()


def _algo(backend: str, source: str) -> str:
    """`vLLM_custom_graph` -> `vllm-custom-graph`, `TRTLLM` -> `trtllm-custom`, `TRTLLM_MNNVL_oneshot` -> `trtllm-mnnvl-oneshot`."""
    tail = source.lower().replace("customallreduce", "custom").split("_")[1:]
    return "-".join([backend, *(tail or ["custom"])])


def _parquet(path: Path) -> pd.DataFrame:
    with path.open("rb") as file:
        if file.read(40).startswith(b"version https://git-lfs"):
            raise MeasurementError(f"{path.name} is a Git LFS pointer, not the table; run `git lfs pull` in that checkout, or pip install {PACKAGE}")
    try:
        return pd.read_parquet(path)
    except ImportError:
        raise MeasurementError(f"reading the tables of {PACKAGE} needs pyarrow; pip install pyarrow") from None
    except (OSError, ValueError) as reason:
        raise MeasurementError(f"{'/'.join(path.parts[-5:])} cannot be read as parquet: {' '.join(str(reason).split())[:160]}") from None
