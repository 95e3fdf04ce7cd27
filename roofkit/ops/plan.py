"""Plan: how a model is spread over devices and in which number formats it runs. Room: ops.

Devices = tp x dp x pp x cp. Expert parallelism shares those ranks: with ep <= tp the experts of one replica are spread
over ep of its tp ranks (each expert split tp/ep ways); with ep > tp it spans ep/tp data-parallel replicas, which is
"DP attention with expert parallelism". Source of the identity: EDP x EP x (tp per expert) = tp x dp, Megatron-Core MoE.
Formats left at None are those of the checkpoint: `resolved` fills them in.
"""
from dataclasses import dataclass, replace
from functools import lru_cache

from roofkit.architectures.architecture import Architecture
from roofkit.architectures.checkpoint import quantized_matrices
from roofkit.architectures.shapes import layer_matrices
from roofkit.errors import PlanError
from roofkit.formats import KV_FORMATS, GemmFormat, gemm_format, number_format

PARTS = ("mixer", "ffn", "experts", "shared")  # groups of linear weights that a checkpoint may keep at 16 bit


@dataclass(frozen=True, slots=True)
class Plan:
    """tp, pp, ep, dp, cp   ranks of tensor, pipeline, expert, data and context parallelism
    weights, activations, kv   number formats of linear weights, of activations in their products, of the KV cache;
                               None = as the checkpoint stores them, 16 bit where it does not say
    wide                 parts of the model whose weights and activations stay at 16 bit, of PARTS
    """

    tp: int = 1
    pp: int = 1
    ep: int = 1
    dp: int = 1
    cp: int = 1
    weights: str | None = None
    activations: str | None = None
    kv: str | None = None
    wide: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for key in ("tp", "pp", "ep", "dp", "cp"):
            size = getattr(self, key)
            if isinstance(size, bool) or int(size) != size or size < 1:
                raise PlanError(f"Plan: {key}={size!r} must be a whole number of at least 1")
        for key in ("weights", "activations"):
            if getattr(self, key) is not None:
                number_format(getattr(self, key), f"Plan: {key}")
        if self.weights is not None and self.activations is not None:
            gemm_format(self.weights, self.activations)
        if unknown := set(self.wide) - set(PARTS):
            raise PlanError(f"Plan: wide={sorted(unknown)} are no parts of a model; choose of {', '.join(PARTS)}")
        if self.kv is not None and self.kv not in KV_FORMATS:
            raise PlanError(f"Plan: kv={self.kv!r} is not a format of the KV cache; choose one of {', '.join(KV_FORMATS)}")
        if self.ep > self.tp:
            if self.ep % self.tp or (self.tp * self.dp) % self.ep:
                raise PlanError(f"Plan: ep={self.ep} must be a multiple of tp={self.tp} and divide tp x dp = {self.tp * self.dp}")
        elif self.tp % self.ep:
            raise PlanError(f"Plan: ep={self.ep} must divide tp={self.tp} (or be a multiple of it that divides tp x dp)")

    @property
    def n_devices(self) -> int:
        return self.tp * self.dp * self.pp * self.cp

    @property
    def expert_tp(self) -> int:
        """Ranks that split one expert."""
        return max(1, self.tp // self.ep)

    @property
    def expert_replicas(self) -> int:
        """Data-parallel replicas whose tokens meet in one expert group: 1 without DP attention."""
        return max(1, self.ep // self.tp)

    def linear(self, part: str = "ffn") -> GemmFormat:
        """Formats of the products of one part of the model; 16 bit for parts in `wide`."""
        weights, activations = self.weights or "bf16", self.activations or "bf16"
        if part in self.wide:
            return gemm_format(self.sixteen_bit, self.sixteen_bit)
        return gemm_format(weights, activations)

    @property
    def sixteen_bit(self) -> str:
        """Format of what is never quantised: "fp16" or "fp32" when the plan names one, else "bf16"."""
        names = (self.activations, self.weights)
        return "fp16" if "fp16" in names else "fp32" if "fp32" in names else "bf16"

    @property
    def kv_bytes_per_el(self) -> float:
        return number_format(self.kv or "bf16", "kv").bytes_per_el

    def describe(self) -> str:
        """`TP8 · DP4 · EP32 · fp8 · KV bf16`, only the sizes that differ from one rank."""
        sizes = [f"{k.upper()}{getattr(self, k)}" for k in ("tp", "pp", "dp", "ep", "cp") if getattr(self, k) > 1] or ["one device"]
        formats = [f for f in (self.weights, self.activations) if f] or ["formats of the checkpoint"]
        kept = f" ({', '.join(self.wide)} 16 bit)" if self.wide else ""
        return " · ".join([*sizes, "/".join(dict.fromkeys(formats)) + kept, *([f"KV {self.kv}"] if self.kv else [])])


def resolved(plan: Plan, arch: Architecture) -> Plan:
    """The plan with every format named: those of the checkpoint where the plan leaves them open.

    Naming `weights` replaces the checkpoint's formats, with 16-bit activations unless they are named too; naming only
    `activations` keeps its weights (4-bit weights with 16-bit activations run weight-only). KV precision is independent.
    """
    if plan.weights and plan.activations and plan.kv:
        return plan
    q, base = arch.quantization, arch.dtype if arch.dtype in ("bf16", "fp16") else "bf16"
    kv = plan.kv or (q.kv if q and q.kv else base)
    if plan.weights or q is None:
        base = next((f for f in (plan.weights, plan.activations) if f in ("fp16", "bf16", "fp32")), base)
        return replace(plan, weights=plan.weights or base, activations=plan.activations or base, kv=kv)
    stored = base if q.activations in ("bf16", "fp16") else q.activations
    return replace(plan, weights=q.weights, activations=plan.activations or stored, kv=kv, wide=plan.wide or _kept_wide(arch))


@lru_cache(maxsize=256)
def _kept_wide(arch: Architecture) -> tuple[str, ...]:
    """Parts of which the checkpoint stores less than half of the weights quantised."""
    stored, narrow = dict.fromkeys(PARTS, 0), dict.fromkeys(PARTS, 0)
    for group in arch.groups:
        for matrix in layer_matrices(group, arch.hidden):
            stored[_part(matrix)] = stored.get(_part(matrix), 0) + group.count * matrix.params
    for matrix, layers in quantized_matrices(arch):
        narrow[_part(matrix)] = narrow.get(_part(matrix), 0) + layers * matrix.params
    return tuple(part for part in PARTS if stored[part] and narrow[part] < 0.5 * stored[part])


def _part(matrix) -> str:
    if matrix.part in ("routed", "shared", "router"):
        return {"routed": "experts", "shared": "shared", "router": "router"}[matrix.part]
    return "ffn" if matrix.name.startswith("mlp") else "mixer"
