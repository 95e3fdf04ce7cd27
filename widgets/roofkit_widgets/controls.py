"""Controls: Control specs -> ipywidgets, kept in step with a selection. Room: widgets (imports values)."""
from collections.abc import Callable, Container, Mapping, Sequence

import ipywidgets as ipw

from roofkit.views.values import Control
from roofkit_widgets.theme import esc

Selection = dict[str, str | int]
GROUPS = {  # headings of the side panel; a control of another key joins the first group
    "Parallel plan": ("tp", "pp", "ep", "dp", "cp"),
    "Number formats": ("weights", "activations", "kv"),
    "How it is estimated": ("cost_model", "engine"),
}
FIRST = "Model, device, workload"


class Controls:
    """Inputs of a page. `on_change(key, value)` hears what a person does; what code sets stays silent.

    specs   selection -> Control specs; they may depend on the selection (prefill has a prompt, decode a context), and a
            widget is rebuilt only when its kind changes, refilled only when its options change
    """

    def __init__(self, specs: Callable[[Mapping[str, str | int]], Sequence[Control]], on_change: Callable[[str, str | int], None]) -> None:
        self._specs_of, self._on_change = specs, on_change
        self.inputs: dict[str, ipw.Widget] = {}
        self.specs: tuple[Control, ...] = ()
        self._values: Selection = {}  # what the inputs show
        self._remembered: Selection = {}  # values of controls that are away at the moment
        self._boxes = {name: _group(name) for name in (FIRST, *GROUPS)}
        self._quiet = False
        self.widget = ipw.VBox(list(self._boxes.values()))
        self.widget.add_class("rk-controls")

    def resolve(self, wanted: Mapping[str, object], changed: Container[str] | None = None
                ) -> tuple[Selection, tuple[Control, ...], dict[str, object]]:
        """Wanted values -> (a value for every control, the controls, wanted values that are no option).

        Text matches a number ("8" is 8), as it comes from a link. Values beside the controls ("config") are kept.
        With `changed` (keys a person changes now), a control that stands at its default follows when its default moves.
        """
        following = {c.key: c.default for c in self.specs if changed is not None and c.key not in changed}
        values = self._values
        for _ in range(6):  # a control's options may depend on another control
            extra = {k: v for k, v in wanted.items() if k == "config" and v}
            specs = tuple(self._specs_of({**values, **extra}))
            at_default = {c.key for c in specs if c.key in following and wanted.get(c.key) == following[c.key] != c.default}
            found = {c.key: _match(c, None if c.key in at_default else {**self._remembered, **wanted}.get(c.key)) for c in specs}
            new = {**found, **extra}
            if new == values:
                break
            values = new
        known = {c.key: c for c in specs}
        bad = {k: v for k, v in wanted.items() if k != "config" and k not in at_default and (k not in known or str(v) != str(values[k]))}
        return values, specs, bad

    def show(self, values: Selection, specs: tuple[Control, ...]) -> None:
        """Make the inputs show these values; silent."""
        self._quiet = True
        try:
            if specs != self.specs:
                self._rebuild(values, specs)
            for spec in specs:
                widget = self.inputs[spec.key]
                if widget.value != values[spec.key]:
                    widget.value = values[spec.key]
        finally:
            self._quiet = False
        self._values = dict(values)
        self._remembered.update({c.key: values[c.key] for c in specs})

    def forget(self, key: str | None = None) -> None:
        """Forget one value, or those of all controls that are away: a reset means the defaults."""
        if key is None:
            self._remembered.clear()
        else:
            self._remembered.pop(key, None)

    def _rebuild(self, values: Selection, specs: tuple[Control, ...]) -> None:
        old = {c.key: c for c in self.specs}
        for spec in specs:
            before = old.get(spec.key)
            if spec.key not in self.inputs or before is None or before.kind != spec.kind:
                self.inputs[spec.key] = self._build(spec, values[spec.key])
            elif before != spec:
                widget = self.inputs[spec.key]
                with widget.hold_sync():
                    if before.options != spec.options:
                        widget.options = spec.options
                        widget.value = values[spec.key]
                    widget.description, widget.tooltip = spec.label, spec.help
        self.specs = specs
        for name, box in self._boxes.items():
            members = tuple(self.inputs[c.key] for c in specs if _group_of(c.key) == name)
            if box.children[1:] != members:
                box.children = (box.children[0], *members)
            box.layout.display = None if members else "none"

    def _build(self, spec: Control, value: str | int) -> ipw.Widget:
        kinds = {"choice": ipw.Dropdown, "slider": ipw.SelectionSlider, "toggle": ipw.ToggleButtons}
        more = {"continuous_update": True} if spec.kind == "slider" else {}
        widget = kinds[spec.kind](options=spec.options, value=value, description=spec.label, tooltip=spec.help,
                                  layout=ipw.Layout(width="auto"), style={"description_width": "initial"}, **more)
        widget.add_class("rk-control").add_class(f"rk-{spec.kind}").add_class(f"rk-key-{spec.key}")
        widget.observe(lambda change, key=spec.key: self._changed(key, change["new"]), "value")
        return widget

    def _changed(self, key: str, value: str | int | None) -> None:
        if not self._quiet and value is not None:
            self._on_change(key, value)


def _group_of(key: str) -> str:
    return next((name for name, keys in GROUPS.items() if key in keys), FIRST)


def _group(name: str) -> ipw.VBox:
    box = ipw.VBox([ipw.HTML(f"<h3>{esc(name)}</h3>")])
    box.add_class("rk-group")
    if name in GROUPS:
        box.add_class("rk-narrow").add_class(f"rk-narrow-{list(GROUPS).index(name)}")
    return box


def _match(control: Control, wanted: object) -> str | int:
    """The option equal to `wanted`, also as text; else the default, or the first option when that is gone."""
    options = [v for _, v in control.options]
    for value in options:
        if wanted is not None and (value == wanted or str(value) == str(wanted)):
            return value
    return control.default if control.default in options else options[0]
