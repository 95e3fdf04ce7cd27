"""The accuracy tables of the README are the shipped validation table, not a claim: they are built here and must stand there word for word.

After a refit print them with `python -m tests.test_accuracy_table` and paste them into the README.
"""
from pathlib import Path

from roofkit.evidence.bands import validation_table
from roofkit.views.step import step_view

GPUS = {"a100-sxm-80gb": "A100", "h100-sxm-80gb": "H100", "b200-sxm-180gb": "B200", "l40s": "L40S", "rtx-pro-6000-server": "RTX PRO 6000"}
ROWS = [  # what, op, format, split
    ("matrix products, bf16", "gemm", "bf16", "family"), ("matrix products, fp8", "gemm", "fp8", "family"),
    ("prefill attention, bf16", "attention_prefill", "bf16/bf16", "family"), ("the same, a head width never seen", "attention_prefill", "bf16/bf16", "head_dim"),
    ("decode attention, bf16", "attention_decode", "bf16", "family"), ("the same, a head width never seen", "attention_decode", "bf16", "head_dim"),
    ("experts (MoE), bf16", "moe", "bf16", "family"), ("all-reduce, sizes between the measured ones", "all_reduce", "bf16", "sizes"),
    ("matrix products, constants of another generation", "gemm", "bf16", "gpu"), ("decode attention, constants of another generation", "attention_decode", "bf16", "gpu"),
]
SIBLINGS = {"h200-sxm-141gb": "H200", "gb200-186gb": "GB200", "b300-sxm-270gb": "B300", "gb300-279gb": "GB300"}
SIBLING_ROWS = [("matrix products, bf16", "gemm", "bf16", "sibling"), ("matrix products, fp8", "gemm", "fp8", "sibling"), ("matrix products, nvfp4", "gemm", "nvfp4", "sibling"),
                ("prefill attention, bf16", "attention_prefill", "bf16/bf16", "sibling"), ("decode attention, bf16", "attention_decode", "bf16", "sibling"),
                ("experts (MoE), bf16", "moe", "bf16", "sibling"), ("all-reduce, NCCL and custom", "all_reduce", "bf16", "sibling")]
ENGINES = {"vllm": "vLLM", "trtllm": "TensorRT-LLM", "sglang": "SGLang"}


def accuracy_table(gpus=GPUS, kinds=tuple(ROWS)) -> str:
    """Markdown: mean absolute error in percent, kernel classes without windows weighted by rows, the worst software stack."""
    table = validation_table()
    table = table[(table["regime"] == "all") & ~table["class"].str.startswith("window")]
    lines = ["| held-out mean error, % | " + " | ".join(gpus.values()) + " |", "| --- |" + " --- |" * len(gpus)]
    for what, op, fmt, split in kinds:
        rows = table[(table["op"] == op) & (table["format"] == fmt) & (table["split"] == split)]
        cells = []
        for gpu in gpus:
            stacks = [(part["mape"] * part["n"]).sum() / part["n"].sum() for _, part in rows[rows["device"] == gpu].groupby("stack")]
            cells.append(f"{100 * max(stacks):.0f}" if stacks else "")
        if any(cells):
            lines.append(f"| {what} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def served_table() -> str:
    """Markdown: mean and median error of load points by GPU and engine, the group left out, weighted by rows; all; and nothing fitted."""
    table = validation_table()
    table = table[table["regime"] == "all"]
    lines = ["| load points of dense models, mean error in % (median) | points | time per output token | time to first token |", "| --- | --- | --- | --- |"]

    def line(what: str, rows) -> str:
        cells = [f"{100 * (r['mape'] * r['n']).sum() / r['n'].sum():.0f} ({100 * (r['median'] * r['n']).sum() / r['n'].sum():.0f})"
                 for op in ("serving", "serving_ttft") for r in [rows[rows["op"] == op]]]
        return f"| {what} | {rows[rows['op'] == 'serving']['n'].sum():,} | " + " | ".join(cells) + " |"

    group = table[(table["split"] == "group") & table["op"].str.startswith("serving")]
    for device in sorted(group["device"].unique(), reverse=True):
        for engine, label in ENGINES.items():
            rows = group[(group["device"] == device) & (group["stack"] == engine)]
            if len(rows):
                lines.append(line(f"{GPUS[device]}, {label}", rows))
    lines.append(line("all, each model, engine and format left out", group))
    for split, what in (("gpu", "all, each GPU left out"), ("tables", "all, kernel tables alone: no served step seen")):
        lines.append(line(what, table[(table["split"] == split) & table["op"].str.startswith("serving")]))
    return "\n".join(lines)


def test_the_readme_shows_the_shipped_errors():
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    for table in (accuracy_table(), accuracy_table(SIBLINGS, SIBLING_ROWS), served_table()):
        assert table in readme


def test_every_estimate_carries_a_band_or_says_it_has_none():
    def labels(**selection):
        return [label for label, _ in step_view(selection).badges]

    assert any("±" in label for label in labels()) and any("±" in label for label in labels(phase="prefill"))
    assert "not validated on this device" in labels(device="mi300x") and "not validated on this device" in labels(cost_model="simple")
    assert not any("±" in label or "validated" in label for label in labels(cost_model="ideal"))


def test_the_band_is_that_of_the_weakest_operator():
    dense, experts = (next(text for label, text in step_view(s).badges if "±" in label) for s in ({}, {"model": "mixtral-8x7b", "tp": 2}))
    assert "attention decode" in dense and "moe" in experts


if __name__ == "__main__":
    print(accuracy_table(), accuracy_table(SIBLINGS, SIBLING_ROWS), served_table(), sep="\n\n")
