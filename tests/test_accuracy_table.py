"""The accuracy table of the README is the shipped validation table, not a claim: it is built here and must stand there word for word.

After a refit print it with `python -m tests.test_accuracy_table` and paste it between the README's markers.
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
    ("decode attention, constants of another GPU", "attention_decode", "bf16", "gpu"), ("matrix products, constants of another GPU", "gemm", "bf16", "gpu"),
]


def accuracy_table() -> str:
    """Markdown: mean absolute error in percent, kernel classes without windows weighted by rows, the worst software stack."""
    table = validation_table()
    table = table[(table["regime"] == "all") & ~table["class"].str.startswith("window")]
    lines = ["| held-out mean error, % | " + " | ".join(GPUS.values()) + " |", "| --- |" + " --- |" * len(GPUS)]
    for what, op, fmt, split in ROWS:
        rows = table[(table["op"] == op) & (table["format"] == fmt) & (table["split"] == split)]
        cells = []
        for gpu in GPUS:
            stacks = [(part["mape"] * part["n"]).sum() / part["n"].sum() for _, part in rows[rows["device"] == gpu].groupby("stack")]
            cells.append(f"{100 * max(stacks):.0f}" if stacks else "")
        if any(cells):
            lines.append(f"| {what} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def test_the_readme_shows_the_shipped_errors():
    assert accuracy_table() in (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


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
    print(accuracy_table())
