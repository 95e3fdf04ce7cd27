"""Memory bar: what fills the fullest device, and whether it fits. Room: widgets (imports tables, units, theme)."""
import ipywidgets as ipw
import pandas as pd

from roofkit.tables import MEMORY_INDEX
from roofkit.units import gb, percent
from roofkit_widgets.theme import MEMORY_COLORS, MEMORY_LABELS, caption, card, legend_item


class MemoryBar:
    """Parts of device memory against the capacity; "fits" or "does not fit" in words, not by colour alone."""

    def __init__(self) -> None:
        self.html = ipw.HTML()
        self.widget = card("memory", "Memory of the fullest device", self.html)

    def update(self, memory: pd.Series, alt: str = "") -> None:
        """memory: tables.MEMORY_INDEX and "capacity" [bytes]."""
        capacity = float(memory.get("capacity", 0.0))
        parts = {k: float(memory.get(k, 0.0)) for k in MEMORY_INDEX}
        used = sum(parts.values())
        if capacity <= 0:
            self.html.value = caption(alt)
            return
        whole, over = max(used, capacity), used - capacity
        pieces = "".join(f"<i style='width:{100 * v / whole:.2f}%;background:{MEMORY_COLORS[k]}'></i>" for k, v in parts.items() if v > 0)
        edge = f"<u style='left:{100 * capacity / whole:.2f}%'></u>" if over > 0 else ""
        state = (f"<p class='rk-fit rk-bad'>Does not fit: {gb(over)} more than the {gb(capacity)} there are</p>" if over > 0 else
                 f"<p class='rk-fit rk-good'>Fits: {gb(used)} of {gb(capacity)}, {percent(1 - used / capacity, 0)} free</p>")
        keys = "".join(legend_item(MEMORY_COLORS[k], f"{MEMORY_LABELS[k]} {gb(v)}") for k, v in parts.items() if v > 0)
        self.html.value = f"{state}<div class='rk-memory' aria-hidden='true'>{pieces}{edge}</div><div class='rk-legend'>{keys}</div>{caption(alt)}"
