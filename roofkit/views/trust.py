"""Trust: the error band that an estimate carries, from the weakest validated part of it. Room: views."""
from roofkit.cost.model import CostedOp
from roofkit.evidence.bands import NOT_VALIDATED, Band, weakest
from roofkit.inference.step import Step
from roofkit.ops.kinds import Attention, Collective, Gemm, GroupedGemm

SMALL = 0.02  # share of the step below which an operator's error does not count


def part_of(costed: CostedOp) -> tuple[str, str | None] | None:
    """(operator kind, format) of an op as the validation table names them; None for small passes over activations."""
    op = costed.op
    if isinstance(op, Gemm):
        return "gemm", op.format.name
    if isinstance(op, GroupedGemm):
        return "moe", op.format.name
    if isinstance(op, Collective):
        return op.kind, "bf16"
    if isinstance(op, Attention):
        kind = ("mla_" if op.latent else "attention_") + op.phase
        return kind, op.kv_format if op.phase == "decode" else f"{op.math}/{op.kv_format}".replace("fp16", "bf16")
    return None


def error_band(step: Step) -> Band | None:
    """Held-out error of the weakest operator kind that takes over 2 % of the step; None when one of them was never validated here."""
    if step.cost_model != "calibrated" or step.calibration == "generic":
        return None  # inherited constants have a band where the very device and format were judged with them
    parts = [part for c in step.costed if c.time_s > SMALL * step.device_s and (part := part_of(c))]
    return weakest(step.cluster.device.name, parts, step.engine)


def band_badge(step: Step) -> tuple[str, str]:
    """(label, meaning) of the badge that every calibrated or simple estimate shows."""
    found = error_band(step)
    if found is None:
        return NOT_VALIDATED, "An operator of this step has no held-out error on this device: read the figures as estimates, compare rather than trust them"
    return (f"±{100 * found.mape:.0f} % on {found.text.split(' on ')[-1]}",
            f"{found.text}: mean absolute error of the weakest operator kind of this step on {found.n:,} measurements that the fit never saw "
            f"(95 % interval {100 * found.low:.0f}-{100 * found.high:.0f} %, nine of ten within {100 * found.p90:.0f} %)")
