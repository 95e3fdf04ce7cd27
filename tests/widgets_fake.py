"""A stand-in for roofkit.views.step: a toy model with the shape of the real page, for widget tests without the library's rooms."""
import pandas as pd

from roofkit.errors import PlanError
from roofkit.tables import BREAKDOWN
from roofkit.units import gb, percent, si
from roofkit.views.values import Control, Problem, Roof, Statement, StepView, Tile

MODELS = {"toy-8b": (4096, 14336, 32, 1024), "toy-70b": (8192, 28672, 80, 1024)}
DEVICES = {"fast": (989e12, 3.35e12, 80e9), "slow": (312e12, 2.0e12, 40e9)}


def step_controls(selection):
    length = Control("context_tokens", "Context", "slider", _powers(7, 17), 2048, "tokens already in the KV cache")
    if selection.get("phase") == "prefill":
        length = Control("prompt_tokens", "Prompt", "slider", _powers(7, 15), 1024, "prompt tokens of one request")
    return (
        Control("model", "Model", "choice", tuple((m, m) for m in MODELS), "toy-8b", "what is computed"),
        Control("device", "Device", "choice", (("Fast GPU", "fast"), ("Slow GPU", "slow")), "fast", "what it runs on"),
        Control("phase", "Phase", "toggle", (("Decode", "decode"), ("Prefill", "prefill")), "decode", "one token, or the prompt"),
        Control("batch", "Batch", "slider", _powers(0, 9), 16, "sequences in a step"),
        length,
        Control("tp", "Tensor", "choice", tuple((str(t), t) for t in (1, 2, 4, 8)), 1, "ranks that share every layer"),
        Control("pp", "Pipeline", "choice", (("1", 1), ("2", 2)), 1, "pipeline stages"),
        Control("ep", "Expert", "choice", (("1", 1),), 1, "ranks that share the experts"),
        Control("dp", "Data", "choice", (("1", 1), ("2", 2)), 1, "copies"),
        Control("weights", "Weights", "choice", (("bf16", "bf16"), ("fp8", "fp8")), "bf16", "number format of the weights"),
        Control("cost_model", "Cost model", "toggle", (("Calibrated", "calibrated"), ("Ideal", "ideal")), "calibrated", "how time is found"),
    )


def _powers(lo, hi):
    return tuple((f"{2**k:,}", 2**k) for k in range(lo, hi + 1))


def _rows(s):
    d, ff, layers, kv = MODELS[s["model"]]
    peak, bandwidth, _ = DEVICES[s["device"]]
    tp, el = s["tp"], 1 if s["weights"] == "fp8" else 2
    tokens = s["batch"] * s.get("prompt_tokens", 1)
    context = s.get("context_tokens", s.get("prompt_tokens", 0))
    gemms = [("qkv_proj", "projections", (d + 2 * kv) // tp, d, layers), ("o_proj", "projections", d, d // tp, layers),
             ("gate_up_proj", "ffn", 2 * ff // tp, d, layers), ("down_proj", "ffn", d, ff // tp, layers),
             ("lm_head", "embedding_head", 128256 // tp, d, 1)]
    for name, category, n, k, count in gemms:
        m = s["batch"] if name == "lm_head" else tokens
        yield name, category, "gemm", count, m, n, k, 2.0 * m * n * k * count, count * (n * k * el + 2 * m * (n + k)), 0.0
    pairs = tokens * context * (0.5 if s["phase"] == "prefill" else 1.0)
    yield "attention", "attention", "attention", layers, tokens, None, None, 4.0 * pairs * d * layers / tp, layers * s["batch"] * context * 4 * kv / tp, 0.0
    for name, width in (("input_norm", d), ("post_norm", d), ("rope", d), ("act_mul", ff // tp)):
        yield name, "norm_elementwise", "elementwise", layers, tokens, width, None, 5.0 * tokens * width * layers, 4.0 * tokens * width * layers, 0.0
    yield "embedding", "embedding_head", "elementwise", 1, tokens, d, None, 0.0, 4.0 * tokens * d, 0.0
    if tp > 1:
        yield "attn_all_reduce", "collectives", "collective", layers, tokens, d, None, 0.0, 0.0, 2.0 * tokens * d * layers
        yield "ffn_all_reduce", "collectives", "collective", layers, tokens, d, None, 0.0, 0.0, 2.0 * tokens * d * layers


def fake_ops(s):
    peak, bandwidth, _ = DEVICES[s["device"]]
    eff, launch = (1.0, 0.0) if s["cost_model"] == "ideal" else (0.8, 3e-6)
    rows = []
    for name, category, kind, count, m, n, k, flops, hbm, network in _rows(s):
        compute, memory, net, start = flops / peak / eff, hbm / bandwidth / eff, network / 4e11, launch * count
        time = max(compute, memory) + net + start
        terms = {"compute": compute, "memory": memory, "network": net, "launch": start}
        intensity = flops / hbm if hbm else float("nan")
        rows.append(dict(
            name=name, category=category, kind=kind, count=count, m=m, n=n, k=k, flops=flops, flops_padded=flops * 1.02, hbm_bytes=hbm,
            network_bytes=network, intensity=intensity, flops_per_s=flops / time, compute_s=compute, memory_s=memory,
            network_s=net, launch_s=start, time_s=time, bound=max(terms, key=terms.get), ideal_s=max(flops / peak, hbm / bandwidth),
            roof_flops_per_s=min(peak, intensity * bandwidth) if hbm else float("nan"), form="toy", calibration="generic",
            hint="fp8 weights halve the bytes" if kind == "gemm" else "fuse with its neighbour"))
    ops = pd.DataFrame(rows)
    ops["share"] = ops["time_s"] / ops["time_s"].sum()
    return ops


def step_view(selection):
    s = dict(selection)
    if s.get("config"):
        s["model"] = "toy-8b"
    d, ff, layers, kv = MODELS[s["model"]]
    peak, bandwidth, capacity = DEVICES[s["device"]]
    if s["tp"] == 8 and s["pp"] == 2:
        raise PlanError("tp=8 with pp=2 needs 16 devices; choose pp=1")
    weights = layers * (2 * d * d + 2 * d * kv + 3 * d * ff) * (1 if s["weights"] == "fp8" else 2) / s["tp"]
    cache = s["batch"] * s.get("context_tokens", s.get("prompt_tokens", 0)) * layers * 4.0 * kv / s["tp"]
    memory = pd.Series({"weights": weights, "kv_cache": cache, "state": 0.0, "activations": 1e9, "reserve": 4e9, "capacity": capacity})
    need = memory.drop("capacity").sum()
    if need > capacity:
        fix = {"tp": 8} if s["tp"] < 8 else {"batch": 1}
        reason = f"{s['model']} needs {gb(need)} on each device, which has {gb(capacity)}: weights {gb(weights)}, KV cache {gb(cache)}."
        label = "Use tensor parallelism 8" if "tp" in fix else "Use batch 1"
        return StepView(selection, s["model"], (Tile("memory", "Memory", f"{gb(need)} of {gb(capacity)}", "does not fit", bad=True),),
                        memory=memory, problem=Problem(reason, fix, label))
    return _page(selection, s, fake_ops(s), memory, (peak, bandwidth, capacity))


def _page(selection, s, ops, memory, device):
    peak, bandwidth, capacity = device
    breakdown = (ops["time_s"] - ops["launch_s"]).groupby(ops["category"]).sum().reindex(list(BREAKDOWN), fill_value=0.0)
    breakdown["launch"] = ops["launch_s"].sum()
    total, worst = ops["time_s"].sum(), ops.loc[ops["time_s"].idxmax()]
    tokens = s["batch"] * s.get("prompt_tokens", 1)
    mfu = ops["flops"].sum() / total / peak
    used = memory.drop("capacity").sum()
    explain = {r["name"]: (("", f"{r['name']} takes {si(r['time_s'], 's')}, {percent(r['share'])} of the step, and is {r['bound']}-bound."),
                           ("compute", f"{si(r['flops'], 'FLOP')} / {si(peak, 'FLOP/s')} = {si(r['compute_s'], 's')}"),
                           ("memory", f"{si(r['hbm_bytes'], 'B')} / {si(bandwidth, 'B/s')} = {si(r['memory_s'], 's')}"),
                           ("launch", f"{r['count']} calls = {si(r['launch_s'], 's')}")) for _, r in ops.iterrows()}
    return StepView(
        selection, f"{s['model']} on the {s['device']} GPU, {s['phase']} batch {s['batch']}",
        tiles=(Tile("step", "Step time", si(total, "s"), "all operators", number=total, better="lower"),
               Tile("rate", "Output rate", f"{tokens / total:,.0f} tok/s", "all users", number=tokens / total, better="higher"),
               Tile("user", "Per user", f"{1 / total:,.1f} tok/s", "one new token each step", number=1 / total, better="higher"),
               Tile("mfu", "Compute used", percent(mfu), "MFU, of peak FLOP/s", number=mfu, better="higher"),
               Tile("memory", "Memory", f"{gb(used)}", f"fits, of {gb(capacity)}")),
        statements=(Statement(f"A step takes {si(total, 's')}; {worst['name']} is the longest operator with {percent(worst['share'])} of it.", "ops"),
                    Statement(f"{worst['name']} is {worst['bound']}-bound at {worst['intensity']:.3g} FLOP/byte.", "roofline"),
                    Statement(f"Kernel launches are {percent(breakdown['launch'] / total)} of the step.", "breakdown"),
                    Statement(f"{gb(capacity - used)} of memory stay free.", "memory")),
        ops=ops, breakdown=breakdown, memory=memory,
        roofs=(Roof("peak bf16", "peak", peak, bandwidth), Roof("achievable bf16", "achievable", 0.8 * peak, 0.9 * bandwidth)),
        explain=explain, badges=(("estimate", "Not validated on this device: comparisons are the point."), ("generic constants", "No fit for this device.")),
        provenance=pd.DataFrame({"figure": ["peak_bf16", "bandwidth", "launch"], "value": [peak / 1e12, bandwidth / 1e12, 3.0], "unit": ["TFLOP/s", "TB/s", "us"],
                                 "kind": ["published", "published", "assumed"], "confidence": ["A", "A", "C"], "source": ["datasheet", "datasheet", "a guess"]}),
        notes=("A toy: shapes are right, times are not.",),
        alt={"roofline": f"{len(ops)} operators; the largest, {worst['name']}, takes {percent(worst['share'])} of the step and is {worst['bound']}-bound.",
             "breakdown": f"{percent(breakdown['ffn'] / total)} feed-forward, {percent(breakdown['attention'] / total)} attention.",
             "ops": "Operators, slowest first.", "memory": f"{gb(used)} of {gb(capacity)} used."})


def failing_view(selection):
    if selection["batch"] >= 64:
        raise ZeroDivisionError("/some/where/someone/secret.py <script>boom</script>")
    return step_view(selection)
