"""Share link: a selection in a page's address, and back. Room: widgets (imports nothing of roofkit)."""
import html
import os
from collections.abc import Mapping
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

SERVER_KEYS = {"theme", "template", "token"}  # the server's own parameters, neither read nor repeated
LONGEST = 4096


def query_string() -> str:
    """The query of the page that was asked for; a pre-heated kernel learns it only when a visitor has come."""
    if os.environ.get("VOILA_PREHEAT") == "True":
        from voila.utils import get_query_string  # 45 MB: only where it is needed

        return get_query_string() or ""
    return os.environ.get("QUERY_STRING", "")


def page_address() -> str:
    """Scheme, host and path of the page without its query (which may hold a token); "" outside a served page."""
    parts = urlsplit(os.environ.get("VOILA_REQUEST_URL", ""))
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", "")) if parts.scheme in ("http", "https") and host else ""


def served() -> bool:
    """Is this kernel behind a page that a visitor opened?"""
    return bool(os.environ.get("VOILA_REQUEST_URL"))


def read_query(query: str) -> tuple[dict[str, str], str]:
    """Query text -> (wanted values, remark on what was left out)."""
    if len(query) > LONGEST:
        return {}, "The link is too long to be one of ours and was ignored."
    try:
        pairs = parse_qsl(query, max_num_fields=60)
    except ValueError:
        return {}, "The link has too many values and was ignored."
    return {k: v for k, v in pairs if k not in SERVER_KEYS and k != "config"}, ""


def write_query(selection: Mapping[str, str | int]) -> str:
    """Every control in the link; a pasted config is too long for an address and stays out."""
    return urlencode({k: v for k, v in selection.items() if k != "config"})


class SharedPage:
    """What every page has beside its figures: a link to itself, and whether a visitor sees it. `selection` is the page's state."""

    selection: Mapping[str, str | int]

    def _query(self) -> str:
        return write_query(self.selection)

    @property
    def link(self) -> str:
        """The share link of this page; a pasted config is too long for an address and stays out."""
        return f"{page_address()}?{self._query()}"

    @property
    def served(self) -> bool:
        """True behind a visitor's page: Voila runs every cell, and a check must leave that page alone."""
        return served()

    def share_box(self) -> str:
        """HTML of the link in a field that selects itself, and a button that copies it."""
        query, link = html.escape("?" + self._query(), quote=True), html.escape(self.link, quote=True)
        return (f"<label class='rk-share-link'>Share link <input type='text' readonly data-query='{query}' value='{link}' onfocus='this.select()'></label>"
                "<button type='button' class='rk-button' data-copy>Copy</button>")
