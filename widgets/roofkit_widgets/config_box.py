"""Config box: paste or upload a config.json. Room: widgets (imports errors, theme).

Served to strangers: the text is parsed as JSON and nothing else, its size is capped, and a file's name is only shown.
"""
import json
from collections.abc import Callable

import ipywidgets as ipw

from roofkit.errors import ConfigError
from roofkit_widgets.theme import esc

MOST_BYTES = 256 * 1024


class ConfigBox:
    """`on_config(text)` hears an accepted text, "" when the visitor goes back to the presets; `on_error` what is wrong."""

    def __init__(self, on_config: Callable[[str], None], on_error: Callable[[Exception], None]) -> None:
        self._on_config, self._on_error, self.name = on_config, on_error, ""
        self.open = ipw.ToggleButton(value=False, description="Use your own config.json", icon="file-code-o", layout=ipw.Layout(width="auto"),
                                     tooltip="Paste or upload a Hugging Face config.json")
        self.text = ipw.Textarea(description="Paste config.json", placeholder='{"model_type": "llama", "hidden_size": 4096, …}', rows=5,
                                 continuous_update=False, layout=ipw.Layout(width="auto"), style={"description_width": "initial"})
        self.use = ipw.Button(description="Use this text", button_style="primary", layout=ipw.Layout(width="auto"))
        self.upload = ipw.FileUpload(accept=".json,application/json", multiple=False, description="Upload a file", layout=ipw.Layout(width="auto"))
        self.drop = ipw.Button(description="Back to the presets", layout=ipw.Layout(width="auto", display="none"))
        self.state = ipw.HTML()
        row = ipw.HBox([self.use, self.upload])
        row.add_class("rk-row")
        self.panel = ipw.VBox([self.text, row], layout=ipw.Layout(display="none"))
        self.text.add_class("rk-control")
        self.widget = ipw.VBox([self.open, self.panel, self.state, self.drop])
        self.widget.add_class("rk-group").add_class("rk-config")
        self.open.observe(lambda c: setattr(self.panel.layout, "display", None if c["new"] else "none"), "value")
        self.use.on_click(lambda _: self._take(self.text.value, "pasted text"))
        self.drop.on_click(lambda _: self._on_config(""))
        self.upload.observe(self._uploaded, "value")

    def show(self, config: str) -> None:
        """Say whether a visitor's config is in use."""
        value = (f"<p class='rk-note' role='status'>In use: <b>{esc(self.name or 'your config')}</b>, {len(config):,} characters. "
                 "It stays on this page: a share link cannot carry it.</p>") if config else ""
        if self.state.value != value:
            self.state.value = value
            self.drop.layout.display = None if config else "none"

    def _uploaded(self, change: dict) -> None:
        files = change["new"]
        if not files:
            return
        try:
            if files[0]["size"] > MOST_BYTES or len(files[0]["content"]) > MOST_BYTES:
                raise ConfigError(_too_large(max(files[0]["size"], len(files[0]["content"]))))
            text = bytes(files[0]["content"]).decode("utf-8-sig")
        except UnicodeDecodeError:
            self._on_error(ConfigError("The uploaded file is not UTF-8 text; upload the model's config.json itself."))
        except ConfigError as error:
            self._on_error(error)
        else:
            self._take(text, files[0]["name"])

    def _take(self, text: str, name: str) -> None:
        try:
            check_json(text)
        except ConfigError as error:
            self._on_error(error)
            return
        self.name = name[:60]
        self._on_config(text)


def check_json(text: str) -> None:
    """Raise ConfigError unless `text` is a JSON object of a sane size."""
    size = len(text.encode("utf-8", "replace"))
    if not text.strip():
        raise ConfigError("There is no text; paste the content of a model's config.json.")
    if size > MOST_BYTES:
        raise ConfigError(_too_large(size))
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"This is not JSON: {error.msg} in line {error.lineno}, column {error.colno}. Paste the whole config.json.") from None
    except (RecursionError, ValueError):
        raise ConfigError("This JSON is nested too deeply or holds a number too long to be a model's config.") from None
    if not isinstance(value, dict):
        raise ConfigError(f"This is JSON, but a {type(value).__name__} where an object with keys such as model_type is needed.")


def _too_large(size: int) -> str:
    return f"The text has {size:,} bytes; at most {MOST_BYTES:,} are read. A config.json is usually below 10,000."
