"""Hub access with a stand-in for huggingface_hub: files, retries, errors with what to do, no token in any text."""
import json
import sys
import types

import pytest

from roofkit.architectures import hub
from roofkit.architectures.presets import load_architecture
from roofkit.errors import ConfigError, HubError

CONFIG = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96, "vocab_size": 100}


class Response:
    def __init__(self, status_code):
        self.status_code = status_code


def raised(name, bases=(Exception,), text="it failed\nsecond line", status=None):
    error = type(name, bases, {})(text)
    if status is not None:
        error.response = Response(status)
    return error


@pytest.fixture
def stub(monkeypatch, tmp_path):
    """A huggingface_hub whose answers are set by the test: file name -> contents or error, or a list of them in turn."""
    answers, calls = {}, []

    def hf_hub_download(repo_id, filename, revision=None, token=None, etag_timeout=None):
        calls.append((repo_id, filename, revision, token))
        assert 0 < etag_timeout <= 30
        answer = answers.get(filename, raised("EntryNotFoundError"))
        if isinstance(answer, list):
            answer = answer.pop(0)
        if isinstance(answer, Exception):
            raise answer
        path = tmp_path / filename
        path.write_text(answer if isinstance(answer, str) else json.dumps(answer))
        return str(path)

    module = types.ModuleType("huggingface_hub")
    module.hf_hub_download = hf_hub_download
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    monkeypatch.setattr(hub, "WAIT_S", 0.0)
    return answers, calls


def test_a_repository_is_read_with_its_second_file(stub):
    answers, calls = stub
    answers["config.json"] = CONFIG
    answers["hf_quant_config.json"] = {"quantization": {"quant_algo": "FP8"}}
    arch = load_architecture("org/model", revision="abc", token="hf_secret")
    assert arch.name == "org/model" and arch.quantization.weights == "fp8" and "abc" in arch.source
    assert calls[0] == ("org/model", "config.json", "abc", "hf_secret") and calls[1][1] == "hf_quant_config.json"


def test_the_second_file_is_not_needed(stub):
    answers, calls = stub
    answers["config.json"] = {**CONFIG, "quantization_config": {"quant_method": "fp8"}}
    assert load_architecture("org/model").quantization.weights == "fp8" and len(calls) == 1
    answers["config.json"] = CONFIG
    assert load_architecture("org/model").quantization is None


ERRORS = [  # error, words of the advice, tries
    (raised("GatedRepoError", status=403), ("gated", "token="), 1),
    (raised("RepositoryNotFoundError", status=401), ("private", "org/name"), 1),
    (raised("RevisionNotFoundError", status=404), ("revision",), 1),
    (raised("EntryNotFoundError", status=404), ("config.json",), 1),
    (raised("LocalEntryNotFoundError", (FileNotFoundError,)), ("offline", "preset"), 1),
    (raised("OfflineModeIsEnabled", (ConnectionError,)), ("offline",), 1),
    (raised("HFValidationError", (ValueError,)), ("org/name",), 1),
    (raised("ConnectTimeout", (OSError,)), ("try again",), 3),
    (raised("ReadTimeout"), ("try again",), 3),
    (raised("HfHubHTTPError", status=503), ("try again",), 3),
    (raised("HfHubHTTPError", status=429), ("try again",), 3),
    (raised("Oddity", text=""), ("try again", "Oddity"), 1),
]


@pytest.mark.parametrize("error, words, tries", ERRORS, ids=[type(e[0]).__name__ + str(i) for i, e in enumerate(ERRORS)])
def test_each_failure_says_what_to_do(stub, error, words, tries):
    answers, calls = stub
    answers["config.json"] = error
    with pytest.raises(HubError) as caught:
        load_architecture("org/model")
    text = str(caught.value)
    assert all(w in text for w in words) and "'org/model'" in text and "\n" not in text
    assert len(calls) == tries


def test_a_passing_failure_is_retried(stub):
    answers, calls = stub
    answers["config.json"] = [raised("ReadTimeout"), raised("HfHubHTTPError", status=500), CONFIG]
    assert load_architecture("org/model").hidden == 64 and [c[1] for c in calls].count("config.json") == 3


def test_a_token_is_never_shown(stub):
    answers, _ = stub
    answers["config.json"] = raised("Oddity", text="bad header hf_abcDEF123 and my-own-token")
    with pytest.raises(HubError) as caught:
        load_architecture("org/model", token="my-own-token")
    assert "my-own-token" not in str(caught.value) and "abcDEF" not in str(caught.value)
    assert caught.value.__cause__ is None and caught.value.__suppress_context__


@pytest.mark.parametrize("text", ["", "[1]", "{", "null", '{"a": ' * 100000, "{}"])
def test_a_broken_file_is_a_config_error(stub, text):
    answers, _ = stub
    answers["config.json"] = text
    with pytest.raises(ConfigError):
        load_architecture("org/model")


def test_without_the_package_the_error_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(HubError, match="huggingface_hub is not installed"):
        load_architecture("org/model")
