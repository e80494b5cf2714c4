"""The settings that a rank tells, and the secrets that it does not."""

import json
from types import SimpleNamespace

import pytest
from sglang.srt.server_args import ServerArgs

from sglang.srt.disaggregation.reliable import status_settings
from sglang.srt.disaggregation.reliable.status_settings import flags, settings, transport

SECRET = "sk-very-secret-1234"


def test_only_what_is_not_as_by_default():
    found = flags(ServerArgs(model_path="/m", tp_size=4, disaggregation_mode="decode"))
    assert found["model_path"] == "/m"
    assert found["tp_size"] == 4
    assert found["disaggregation_mode"] == "decode"
    assert not {"port", "dtype", "api_key"} & found.keys()


def test_what_resolution_decided_is_told():
    given = ServerArgs(model_path="/m")
    given._resolved_overrides = [("test", {"page_size": 64})]
    assert flags(given)["page_size"] == 64


def test_secrets_are_masked_wherever_they_stand(monkeypatch):
    for name in ("SGLANG_API_KEY", "NCCL_SECRET", "UCX_TOKEN", "SGLANG_PASSWORD"):
        monkeypatch.setenv(name, SECRET)
    monkeypatch.setenv("SGLANG_WHERE", f"https://user:{SECRET}@host/")
    monkeypatch.setenv("UCX_TLS", "rc,cuda")
    found = settings(ServerArgs(model_path="/m", api_key=SECRET, admin_api_key=SECRET + "-admin"))
    assert SECRET not in json.dumps(found)
    assert found["flags"]["api_key"] == found["flags"]["admin_api_key"] == "***"
    assert found["environment"]["SGLANG_API_KEY"] == "***"
    assert found["environment"]["UCX_TLS"] == "rc,cuda"


def test_only_variables_that_matter(monkeypatch):
    monkeypatch.setenv("SGLANG_PD_TRANSFER_TIMEOUT", "7")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("HF_HOME", "/hf")
    found = settings(None)["environment"]
    assert found["SGLANG_PD_TRANSFER_TIMEOUT"] == "7"
    assert found["NCCL_DEBUG"] == "INFO"
    assert all(name.startswith(status_settings.PREFIXES) for name in found)


def test_without_server_arguments_there_are_no_flags():
    assert settings(None)["flags"] == {}


@pytest.mark.parametrize("value", [{1: {2, 3}}, (1, None, True), 1.5, object])
def test_every_value_can_be_json(value):
    json.dumps(status_settings._plain(value))


def test_the_transport(monkeypatch):
    monkeypatch.setenv("UCX_TLS", "tcp,self")
    agent = SimpleNamespace(backends={"UCX": object()}, get_backend_params=lambda name: {"num_threads": "8"})
    manager = SimpleNamespace(agent=agent, kv_args=SimpleNamespace(kv_data_mem_kinds=["DRAM", "DRAM"]))
    found = transport(manager)
    assert found["backends"] == {"UCX": {"num_threads": "8"}}
    assert found["memory"] == ["DRAM"]
    assert found["ucx"]["UCX_TLS"] == "tcp,self"
    manager.kv_args.kv_data_mem_kinds = None
    assert transport(manager)["memory"] == ["VRAM"]


def test_the_transport_is_not_known_without_an_agent():
    assert transport(SimpleNamespace()) is None
