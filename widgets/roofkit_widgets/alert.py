"""Alert: problems in words on the page, and the guard that puts exceptions there. Room: widgets (imports errors, values, theme).

Voila shows nothing at all of an exception in a callback, so every callback of a page runs under `guarded`.
"""
import functools
import logging
from collections.abc import Callable

import ipywidgets as ipw

from roofkit.errors import RoofkitError
from roofkit.views.values import Problem
from roofkit_widgets.theme import esc

LOG = logging.getLogger(__name__)
STALE = "The figures below still show the last selection that works."
LONGEST = 600


class Alert:
    """A role=alert box with an optional button that applies the fix, and a quieter note for what was ignored."""

    def __init__(self, on_fix: Callable[[Problem], None]) -> None:
        self.problem: Problem | None = None
        self.box, self.note_box = ipw.HTML(), ipw.HTML()
        self.fix = ipw.Button(description="", button_style="primary", icon="wrench", layout=ipw.Layout(width="auto", display="none"))
        self.fix.add_class("rk-fix")
        self.fix.on_click(lambda _: self.problem is not None and on_fix(self.problem))
        self.frame = ipw.VBox([self.box, self.fix])
        self.frame.add_class("rk-alert-frame")
        self.widget = ipw.VBox([self.frame, self.note_box])
        self.widget.add_class("rk-alerts")

    def clear(self) -> None:
        self._show(None, "")

    def show(self, problem: Problem, after: str = "") -> None:
        """A selection that does not work: the reason, what the figures show meanwhile, and the nearest selection that does."""
        self._show(problem, f"<b>This selection does not work.</b> {esc(_short(problem.reason))} {esc(after)}")

    def fail(self, error: Exception, stale: bool) -> None:
        """An exception: roofkit's own texts are for people; of any other only its kind is told."""
        if isinstance(error, RoofkitError):
            text = f"<b>This selection does not work.</b> {esc(_short(str(error)))}"
        else:
            text = f"<b>Something went wrong inside roofkit</b> ({esc(type(error).__name__)}). Undo the last change or reset the page."
        self._show(None, f"{text}{' ' + STALE if stale else ''}")

    def note(self, text: str) -> None:
        """A remark that stops nothing, e.g. a value of the link that was ignored; text is plain."""
        value = f"<div class='rk-remark' role='status'>{esc(_short(text))}</div>" if text else ""
        if self.note_box.value != value:
            self.note_box.value = value

    def _show(self, problem: Problem | None, text: str) -> None:
        self.problem = problem
        value = f"<div class='rk-alert' role='alert'>{text}</div>" if text else ""
        if self.box.value != value:
            self.box.value = value
        label = f"Fix it: {problem.fix_label or 'apply the nearest selection that works'}" if problem is not None and problem.fix else ""
        display = None if label else "none"
        if self.fix.layout.display != display:
            self.fix.layout.display = display
        if label and self.fix.description != label:
            self.fix.description = label


def guarded(method: Callable) -> Callable:
    """Turn any exception of a page's method into its alert; the page keeps what it last drew, `page.error` keeps the exception."""

    @functools.wraps(method)
    def run(self, *args, **kwargs):
        try:
            return method(self, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 - the boundary to the visitor
            LOG.info("callback failed", exc_info=True)  # quiet unless the operator of the server asks: a trace must not reach the page
            self.error = error
            self.alert.fail(error, stale=self.view is not None)
            return None

    return run


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else text[:LONGEST] + " …"
