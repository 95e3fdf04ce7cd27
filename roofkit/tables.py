"""Result tables: column names, units and meaning: the contract between the library and the widgets. Room: ground.

A result is a small object around a DataFrame whose columns are listed here; a widget reads exactly these columns and
computes nothing. `time_s` is device time of all `count` calls unless said.
"""

CATEGORIES = ("attention", "projections", "experts", "ffn", "norm_elementwise", "embedding_head", "collectives")
OVERHEADS = ("launch", "host", "exposed_host", "pipeline_bubble")
BREAKDOWN = CATEGORIES + OVERHEADS  # index of Step.breakdown(); the values sum to Step.time_s
CATEGORY_LABELS = {
    "attention": "Attention", "projections": "Attention projections", "experts": "Experts (MoE)", "ffn": "Feed-forward",
    "norm_elementwise": "Norms and elementwise", "embedding_head": "Embedding and logits", "collectives": "Collectives",
    "launch": "Kernel launch", "host": "Host", "exposed_host": "Exposed host", "pipeline_bubble": "Pipeline bubble",
}
BOUNDS = ("memory", "compute", "network", "launch")

OPS_COLUMNS: dict[str, str] = {  # Step.ops: one row per operator of the step, sorted as executed
    "name": "operator, e.g. gate_up_proj",
    "category": "one of CATEGORIES",
    "kind": "gemm | grouped_gemm | attention | scan | elementwise | collective | transfer",
    "count": "identical calls in the step, mostly one per layer [calls]",
    "m": "rows of the product: tokens; rows per touched expert [elements]; NaN where the op is no product",
    "n": "output width held by one rank [elements]",
    "k": "inner width held by one rank [elements]",
    "flops": "useful work of all calls, 2 per multiply-add [FLOP]",
    "flops_padded": "work the kernel executes with whole tiles [FLOP]",
    "hbm_bytes": "device-memory traffic of all calls [bytes]",
    "network_bytes": "bytes one rank sends, all calls [bytes]",
    "intensity": "flops / hbm_bytes [FLOP/byte]; NaN for collectives",
    "flops_per_s": "flops / time_s, launch included [FLOP/s]",
    "compute_s": "time of the arithmetic alone [s]",
    "memory_s": "time of the memory traffic alone [s]",
    "network_s": "time on the links [s]",
    "launch_s": "fixed cost of starting the kernels [s]",
    "time_s": "all calls [s]",
    "share": "time_s / sum of time_s [0..1]",
    "bound": "one of BOUNDS: launch when that is over half of time_s, else the side of the roofline the op is on",
    "ideal_s": "physical bound of this op: never above time_s [s]",
    "roof_flops_per_s": "peak FLOP/s of the op's number format at its intensity [FLOP/s]; NaN for collectives",
    "form": "closed form that gave the time, with its source key",
    "calibration": "fitted | inherited | generic | bound: how well the constants belong to this device",
    "hint": "the one change that would help most",
}
MEMORY_INDEX = ("weights", "kv_cache", "state", "activations", "reserve")  # Step.memory, bytes on the fullest device
CSV_UNITS = {"flops": "FLOP", "flops_padded": "FLOP", "hbm_bytes": "bytes", "network_bytes": "bytes", "intensity": "FLOP/byte",
             "flops_per_s": "FLOP/s", "compute_s": "s", "memory_s": "s", "network_s": "s", "launch_s": "s", "time_s": "s", "share": "0..1",
             "ideal_s": "s", "roof_flops_per_s": "FLOP/s"}
