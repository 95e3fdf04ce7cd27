"""Expert exchange: tokens to their experts and back (dispatch, combine) inside one machine, by DeepEP's two kernels. Room: cost.

A rank holds T tokens of h elements, b bytes each, k experts per token of E on n ranks. The op counts one copy per expert:
bytes_in = T k h b; measured tables give T per rank, h, k and E, b = 1 (dispatch, 8 bit) or 2 (combine, 16 bit).
  low latency   t = t0 + te E/n + th h/1024 + [ ct T/blocks  (+)1+p  W ],  W = bytes_in (n-1)/n / (eb link)
                one copy per (token, expert); blocks = E / ceil(E/SM): a block serves whole experts, so few experts leave SMs idle
  normal        t = t0 + th h/1024 + [ S  (+)1+p  W R/k ] (1 + sqrt(sh / (bytes_in R/k)))
                S = T/sms (cn + h b/cr + R (cc + h b/cs)): the few SMs that copy;  one copy per (token, rank):
                R = n (1 - C(E - E/n, k) / C(E, k)), ranks that k of E experts touch, uniform routing
No time is below the op's bound: one copy per (token, rank) over the link at its datasheet rate, which either form exceeds.
Mode by size, as engines do it (assumed; the tables hold both): low latency up to 256 tokens per rank, which is what DeepEP's
README recommends as the largest batch of a decoding rank (SGLang's default is 128, the kernel's limit 1024; SGLang's `auto`
takes normal for prefill). Beyond, normal with 20 SMs (DeepEP's Buffer.num_sms), and never below the largest low-latency call.
Fitted (roofkit.evidence.exchange_cases) to `aic:deepep-sglang-0.5.12` rows of one H100 and one B200 machine, github ai-dynamo/aiconfigurator @ 095f58a5
(Apache-2.0, NVIDIA); normal mode to 16-24 SMs. Rows do not state ranks or formats: taken as that collector's defaults, 8 ranks,
tokens per rank, dispatch in fp8, combine in bf16 (collector/deep_collector). Starts at fewer ranks are those of 8 (assumed).
Constants: t0, te [per local expert], th [per 1024 elements], ct, cn [per token], cc [per copy] in us (of SM time: ct, cn, cc);
cr, cs [GB/s per SM: row written, copies read]; eb [share of the link]; sh [kB]; p [exponent - 1].
"""
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

import numpy as np

from roofkit.cost import bounds
from roofkit.cost.calibration import DeviceFits, Fit, read_fits
from roofkit.cost.gemm import smooth_max
from roofkit.cost.model import Timing
from roofkit.hardware.network import Cluster
from roofkit.ops.ffn_blocks import ranks_reached
from roofkit.ops.kinds import Collective, GroupedGemm, Num

MODES = ("low_latency", "normal")
LOW_LATENCY_TOKENS = 256  # per rank
NORMAL_SMS = 20
MEASURED_RANKS = 8  # and the most that DeepEP's one-machine kernels serve
MEASURED_BYTES = {"dispatch": 1.0, "combine": 2.0}  # per element
MEASURED_FORMATS = {"dispatch": "fp8", "combine": "bf16"}
FORM = "expert exchange"


@dataclass(frozen=True, slots=True, eq=False)
class Exchange:
    """One call as one rank sees it; fields may be arrays. bytes_in counts every (token, expert) copy, own rank included."""

    tokens: Num
    bytes_in: Num
    hidden: Num
    top_k: Num
    experts: Num
    ranks: int

    @property
    def ranks_per_token(self) -> Num:
        """Expected ranks that hold at least one of a token's experts, uniform routing without repetition."""
        return ranks_reached(self.experts, self.top_k, self.ranks)

    def with_tokens(self, tokens: Num) -> "Exchange":
        """The same layer with another number of tokens per rank."""
        bytes_in = self.bytes_in / np.maximum(self.tokens, 1e-30) * tokens
        return Exchange(tokens, bytes_in, self.hidden, self.top_k, self.experts, self.ranks)


def exchange(op: Collective, routed: GroupedGemm | None, cluster: Cluster, fits: DeviceFits | None) -> Timing | None:
    """Time of a dispatch or combine beside its experts `routed`; None where these kernels were not measured: beyond one
    machine or 8 ranks, without a fast switch, on devices without a fit of their own or of a sibling."""
    if not _applies(op, routed, cluster) or fits is None:
        return None
    known = [_fit(op.name, mode, fits) for mode in MODES]
    if None in known:
        return None
    call = Exchange(routed.tokens / op.ranks, op.bytes_in, routed.hidden, routed.top_k, routed.total_experts, op.ranks)
    device = (cluster.scaleup_bytes_per_s * 1e-6, fits.sm)
    start, total = _by_size(call, known, device)
    total = np.maximum(total, bounds.network_s(op, cluster) * 1e6)
    few = np.asarray(call.tokens) <= LOW_LATENCY_TOKENS
    mode, used = ("low latency", known[:1]) if few.all() else ("low latency to normal", known) if few.any() else ("normal", known[1:])
    worst = max(used, key=lambda fit: fit.mape or 0)
    note = f"{fits.parent} {op.name} ({worst.stack}, {100 * (worst.mape or 0):.0f} % mean error on unseen layers or sizes); mode by size"
    per_el = np.max(op.bytes_in / np.maximum(call.tokens * call.top_k * call.hidden, 1e-30))
    exact = op.ranks == MEASURED_RANKS and abs(per_el - MEASURED_BYTES[op.name]) < 0.1
    return Timing(total * 1e-6, network_s=(total - start) * 1e-6, launch_s=start * 1e-6, form=f"{FORM}: {mode}",
                  calibration=fits.label(worst, bool(exact)), note=note)


def _applies(op: Collective, routed: GroupedGemm | None, cluster: Cluster) -> bool:
    if op.kind != "all_to_all" or op.group != "ep" or op.name not in MEASURED_BYTES or routed is None or op.ranks <= 1:
        return False
    near = op.ranks * op.stride <= cluster.devices_per_node and op.ranks <= MEASURED_RANKS
    return near and cluster.scaleup_domain >= op.ranks * op.stride and (cluster.scaleup_bytes_per_s or 0) >= 100e9


def _fit(op: str, mode: str, fits: DeviceFits) -> Fit | None:
    """Constants of the device's own file, as `rk.calibrate` writes it, else of the package's file of exchanges."""
    return fits.find(op, (MEASURED_FORMATS[op],), (f"{fits.parent}/{mode}",)) or _fits().get((fits.parent, op, mode))


@lru_cache(maxsize=None)
def _fits() -> dict[tuple[str, str, str], Fit]:
    """(device, dispatch or combine, mode) -> fit."""
    found = read_fits(Path(str(files("roofkit_data") / "calibration" / "expert_exchange.toml")))
    return {(*fit.cls.split("/")[:1], fit.op, fit.cls.split("/")[1]): fit for fit in found}


def _by_size(call: Exchange, known: list[Fit], device: tuple[float, float]) -> tuple[Num, Num]:
    """(start, total) [us]: low latency up to its largest call, then normal, never below that call."""
    (quick_start, quick), (start, rest) = (parts_us(call, mode, fit.constants, *device) for mode, fit in zip(MODES, known, strict=True))
    largest = sum(parts_us(call.with_tokens(LOW_LATENCY_TOKENS), MODES[0], known[0].constants, *device))
    few = np.asarray(call.tokens) <= LOW_LATENCY_TOKENS
    total = np.where(few, quick_start + quick, np.maximum(start + rest, largest))
    return np.where(few, quick_start, start), total


def parts_us(call: Exchange, mode: str, constants: Mapping[str, float], link_us: float, sm: float, sms: Num = NORMAL_SMS) -> tuple[Num, Num]:
    """(start, rest) of one call under `constants`, before the bound [us]: what a fit varies.

    link_us   one direction of one device [bytes/us];  sm   SMs of the device;  sms   SMs that normal mode takes
    """
    c = constants
    row_us, far = c["th"] * call.hidden / 1024, (call.ranks - 1) / call.ranks
    if mode == "low_latency":
        blocks = call.experts / np.ceil(call.experts / sm)
        start = c["t0"] + c["te"] * call.experts / call.ranks + row_us
        return start, smooth_max(c["ct"] * call.tokens / blocks, _wire(call.bytes_in, far, c, link_us), 1 + c["p"])
    sent, row = call.bytes_in * (call.ranks_per_token / call.top_k), call.bytes_in / call.top_k
    copied = sent / (c["cs"] * 1e3) + (row / (c["cr"] * 1e3) if "cr" in c else 0.0)
    work = (call.tokens * (c["cn"] + call.ranks_per_token * c.get("cc", 0.0)) + copied) / sms
    grown = 1 + np.sqrt(c["sh"] * 1e3 / np.maximum(sent, 1.0))
    return c["t0"] + row_us, smooth_max(work, _wire(sent, far, c, link_us), 1 + c["p"]) * grown


def _wire(sent: Num, far: float, constants: Mapping[str, float], link_us: float) -> Num:
    """Time of the part that leaves the rank [us]; positive, as a smooth maximum needs it."""
    return np.maximum(sent * (far / (constants["eb"] * link_us)), 1e-12)
