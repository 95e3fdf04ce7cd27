"""Row checker: serving rows that repeat each other or contradict their own labels, set aside with the reason. Room: evidence.

Run before any fit or validation. Tests: exact repeats (one measurement carried from dump to dump); Little's law and the
roofline of the decode step (a token cannot come faster than its step); the room that the time per token leaves for the
prefill work of the stated concurrency. Rows outside are not scored, they are reported.
"""
import numpy as np
import pandas as pd


ROOM = (0.7, 1.3)  # share of the prefill work that TPOT must leave room for; outside it the label is wrong
LEAST_PREFILL = 0.15  # of TPOT: below this the share is noise and says nothing
TOLERANCE = 0.9  # a step may be over-predicted by this much before its bound counts as broken


def check_rows(measurements, *, bound_ms: np.ndarray | None = None, decode_ms: np.ndarray | None = None, prefill_ms: np.ndarray | None = None) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(rows to keep, rows set aside with a `reason` column) of a table of kind serving.

    bound_ms     roofline of a decode step of the stated concurrency, per row [ms] (steps.bound_ms)
    decode_ms    a decode step of the stated concurrency, per row [ms]; prefill_ms   the prefill of one prompt, per row [ms];
                 without them only repeats, gaps and Little's law are tested
    share = (tpot - decode_ms) / (concurrency x prefill_ms / osl), tested where prefill is at least 15 % of TPOT.
    """
    raw = measurements if isinstance(measurements, pd.DataFrame) else pd.read_csv(measurements)
    if decode_ms is not None:
        raw = raw.assign(decode_ms=decode_ms, prefill_ms=np.nan if prefill_ms is None else prefill_ms)
    measured = [c for c in raw.columns if c not in ("source", "decode_ms", "prefill_ms")]
    repeats = raw.duplicated(measured)
    reason = np.where(repeats, "exact repeat of an earlier row", "")
    tpot, ttft, osl, c = (raw[x].to_numpy(float) for x in ("tpot_ms", "ttft_ms", "osl", "concurrency"))
    gap = ~(tpot > 0) | ~(ttft > 0) | ~(c >= 1)
    reason = np.where((reason == "") & gap, "time or concurrency missing or not above zero", reason)
    if "tok_s_user" in raw:
        off = np.abs(raw["tok_s_user"].to_numpy(float) * tpot / 1e3 - 1) > 0.02
        reason = np.where((reason == "") & off, "tok_s_user is not 1000 / tpot_ms", reason)
    if "tok_s_gpu_derived" in raw:
        held = raw["tok_s_gpu_derived"].to_numpy(float) * raw["n_gpu"].to_numpy(float) * (ttft + (osl - 1) * tpot) / 1e3 / osl
        off = (np.abs(held / c - 1) > 0.05) & (raw.get("mode", pd.Series("agg", raw.index)) == "agg").to_numpy()
        reason = np.where((reason == "") & off, "throughput x time is not the concurrency (Little's law)", reason)
    if bound_ms is not None:
        reason = np.where((reason == "") & (tpot < bound_ms), "faster than the roofline of its decode step", reason)
    if decode_ms is not None:
        reason = _against_steps(raw, reason, tpot, osl, c)
    aside = reason != ""
    return raw[~aside].reset_index(drop=True), raw[aside].assign(reason=reason[aside]).reset_index(drop=True)


def _against_steps(raw: pd.DataFrame, reason: np.ndarray, tpot: np.ndarray, osl: np.ndarray, c: np.ndarray) -> np.ndarray:
    decode, prefill = raw["decode_ms"].to_numpy(float), raw["prefill_ms"].to_numpy(float)
    fast = tpot < TOLERANCE * decode
    work = c * prefill / osl
    share = (tpot - decode) / work
    telling = work > LEAST_PREFILL * tpot
    off = telling & ((share < ROOM[0]) | (share > ROOM[1]))
    reason = np.where((reason == "") & fast, "faster than a decode step of the stated concurrency", reason)
    return np.where((reason == "") & off, "leaves room for a different amount of prefill than the label says", reason)


