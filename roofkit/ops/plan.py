"""Plan: how a model is spread over devices and in which number formats it runs. Room: ops.

Devices = tp x dp x pp x cp. Expert parallelism shares those ranks: with ep <= tp the experts of one replica are spread
over ep of its tp ranks (each expert split tp/ep ways); with ep > tp it spans ep/tp data-parallel replicas, which is
"DP attention with expert parallelism". Source of the identity: EDP x EP x (tp per expert) = tp x dp, Megatron-Core MoE.
"""
from dataclasses import dataclass

from roofkit.errors import PlanError
from roofkit.formats import KV_FORMATS, GemmFormat, gemm_format, number_format


@dataclass(frozen=True, slots=True)
class Plan:
    """tp, pp, ep, dp, cp   ranks of tensor, pipeline, expert, data and context parallelism
    weights, activations, kv   number formats of linear weights, of activations in their products, of the KV cache
    """

    tp: int = 1
    pp: int = 1
    ep: int = 1
    dp: int = 1
    cp: int = 1
    weights: str = "bf16"
    activations: str = "bf16"
    kv: str = "bf16"

    def __post_init__(self) -> None:
        for key in ("tp", "pp", "ep", "dp", "cp"):
            size = getattr(self, key)
            if isinstance(size, bool) or int(size) != size or size < 1:
                raise PlanError(f"Plan: {key}={size!r} must be a whole number of at least 1")
        gemm_format(self.weights, self.activations)
        if self.kv not in KV_FORMATS:
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

    @property
    def linear(self) -> GemmFormat:
        return gemm_format(self.weights, self.activations)

    @property
    def kv_bytes_per_el(self) -> float:
        return number_format(self.kv, "kv").bytes_per_el

    def describe(self) -> str:
        """`TP8 · DP4 · EP32 · fp8`, only what differs from one rank."""
        sizes = [f"{k.upper()}{getattr(self, k)}" for k in ("tp", "pp", "dp", "ep", "cp") if getattr(self, k) > 1] or ["one device"]
        return " · ".join([*sizes, self.weights if self.weights == self.activations else f"{self.weights}/{self.activations}", f"KV {self.kv}"])
