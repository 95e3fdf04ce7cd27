"""Hub: config.json of a repository on the Hugging Face Hub, with errors that say what to do. Room: architectures.

huggingface_hub does caching, pinning, retries of transfers and offline mode; it is imported on first use only. The token
is passed on and never stored, shown or logged.
"""
import os
import re
import time
from pathlib import Path

from roofkit.architectures.architecture import Architecture
from roofkit.errors import HubError

TRIES, WAIT_S, TIMEOUT_S = 3, 0.5, 10.0
_RETRY_NAMES = ("Timeout", "Connection", "ConnectError", "ReadError", "RemoteProtocolError", "ChunkedEncodingError")


def fetch_config(repo: str, revision: str | None = None, token: str | None = None, strict: bool = False,
                 ignore_quantization: bool = False) -> Architecture:
    """The architecture of repository `repo` ("org/name") at `revision` (branch, tag or commit; None = main).

    hf_quant_config.json is fetched too where config.json has no quantisation section. Raises HubError when the Hub cannot
    give the file (offline, gated, private, absent, timed out), ConfigError and its kinds for the contents.
    """
    from roofkit.architectures.config import read_config, read_json_file

    data = read_json_file(Path(_download(repo, "config.json", revision, token)))
    text = data.get("text_config")
    known = any(part.get("quantization_config") for part in (data, text) if isinstance(part, dict))
    quant = None if known else _optional(repo, "hf_quant_config.json", revision, token)
    pinned = f" at revision {revision}" if revision else ""
    return read_config(data, quant, name=repo, source=f"config.json of {repo} on the Hugging Face Hub{pinned}", strict=strict,
                       ignore_quantization=ignore_quantization)


def _optional(repo: str, filename: str, revision: str | None, token: str | None) -> dict | None:
    from roofkit.architectures.config import read_json_file

    try:
        return read_json_file(Path(_download(repo, filename, revision, token, tries=1)))
    except HubError:
        return None


def _download(repo: str, filename: str, revision: str | None, token: str | None, tries: int = TRIES) -> str:
    try:
        import huggingface_hub as hub
    except ImportError:
        raise HubError("the package huggingface_hub is not installed; install it, or pass the path of a downloaded config.json") from None
    for attempt in range(tries):
        try:
            return hub.hf_hub_download(repo_id=repo, filename=filename, revision=revision, token=token, etag_timeout=TIMEOUT_S)
        except Exception as error:  # the Hub client raises errors of several libraries; each becomes one of ours
            if attempt + 1 < tries and _worth_a_retry(error):
                time.sleep(WAIT_S * 2**attempt)
                continue
            raise _explained(error, repo, filename, revision, token) from None
    raise AssertionError("unreachable")


def _names(error: BaseException) -> set[str]:
    return {c.__name__ for c in type(error).__mro__}


def _status(error: BaseException) -> int | None:
    return getattr(getattr(error, "response", None), "status_code", None)


def _worth_a_retry(error: BaseException) -> bool:
    if _names(error) & {"GatedRepoError", "RepositoryNotFoundError", "RevisionNotFoundError", "EntryNotFoundError", "OfflineModeIsEnabled"}:
        return False
    status = _status(error)
    return (status is not None and (status >= 500 or status == 429)) or any(w in n for n in _names(error) for w in _RETRY_NAMES)


def _explained(error: BaseException, repo: str, filename: str, revision: str | None, token: str | None) -> HubError:
    names, at = _names(error), f"{repo!r} on the Hub" + (f" at revision {revision!r}" if revision else "")
    status = _status(error)
    if "GatedRepoError" in names or status in (401, 403) and "RepositoryNotFoundError" not in names:
        what = "is gated: accept its terms on its page, then pass token=... or log in with the Hub's command line"
    elif "RepositoryNotFoundError" in names:
        what = "does not exist or is private: check the spelling 'org/name', and pass token=... if it is private"
    elif "RevisionNotFoundError" in names:
        what = "does not have that revision: use a branch, tag or commit that exists, or leave revision out"
    elif "LocalEntryNotFoundError" in names or "OfflineModeIsEnabled" in names or os.environ.get("HF_HUB_OFFLINE") in ("1", "true", "True"):
        what = "is not in the local cache and the Hub cannot be reached (or offline mode is on): connect once, pass a path to config.json, or use a preset"
    elif "EntryNotFoundError" in names:
        what = f"has no {filename}: roofkit needs a transformers-style config.json; pass the path of one"
    elif "HFValidationError" in names:
        what = "is not a valid repository name: write 'org/name'"
    else:
        what = "cannot be read now: try again, pass a path to config.json, or use a preset"
    detail = str(error).strip().splitlines()
    shown = _without_secrets(detail[0], token)[:160] if detail else type(error).__name__
    return HubError(f"{at} {what} ({type(error).__name__}: {shown})")


def _without_secrets(text: str, token: str | None) -> str:
    if isinstance(token, str) and token:
        text = text.replace(token, "...")
    return re.sub(r"hf_\w+", "hf_...", text)
