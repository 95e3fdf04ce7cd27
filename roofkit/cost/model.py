"""Values of a cost: an op's time with its terms kept apart. Room: cost. Dispatch to the models is in pricing.py."""
from dataclasses import dataclass

import numpy as np

from roofkit.ops.kinds import Num, Op


@dataclass(frozen=True, slots=True, eq=False)
class Timing:
    """What a form says of one call of an op; every term in seconds, scalar or array.

    time_s     the whole call, launch included
    compute_s, memory_s, network_s   the parts alone; with a smooth maximum they do not add up to time_s
    launch_s   fixed start cost, part of time_s
    flops_padded   arithmetic executed with whole tiles [FLOP], one call
    form       name of the closed form; calibration: "bound" | "generic" | "fitted" | "inherited"
    note       what the constants are and where they come from, for explanations
    """

    time_s: Num
    compute_s: Num = 0.0
    memory_s: Num = 0.0
    network_s: Num = 0.0
    launch_s: Num = 0.0
    flops_padded: Num | None = None
    form: str = ""
    calibration: str = "generic"
    note: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class CostedOp:
    """An op with its time. All terms are totals of the op's `count` calls [s]; `ideal_s` is its physical bound.

    No op beats its bound: a form that would is raised to it here, whatever the model.
    """

    op: Op
    timing: Timing
    ideal_s: Num

    @property
    def time_s(self) -> Num:
        return np.maximum(self.timing.time_s * self.op.count, self.ideal_s)

    @property
    def launch_s(self) -> Num:
        return np.minimum(self.timing.launch_s * self.op.count, self.time_s)
