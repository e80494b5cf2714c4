import json
from pathlib import Path

import pytest

from sglang_pd.cluster.plan import ClusterSpec, Plan, build, check_model, check_name, split_flags
from sglang_pd.cluster.ports import PortPicker
from sglang_pd.errors import UserError

MODEL = Path("/models/Tiny-1")


def picker() -> PortPicker:
    return PortPicker(free=lambda port: True, seed=1)


def value(argv: tuple[str, ...], flag: str) -> str:
    return argv[argv.index(flag) + 1]


def test_servers_and_gateway_agree_on_ports_and_name() -> None:
    plan = build(ClusterSpec("c", MODEL, prefill=2, decode=3, port=30001), picker())
    assert [one.name for one in plan.processes] == [
        "prefill-0", "prefill-1", "decode-0", "decode-1", "decode-2", "gateway",
    ]  # fmt: skip
    gateway = plan.gateway.argv
    for one in plan.servers:
        assert value(one.argv, "--port") == str(one.port)
        assert value(one.argv, "--disaggregation-mode") == one.role
        assert value(one.argv, "--disaggregation-transfer-backend") == "nixl"
        assert value(one.argv, "--served-model-name") == plan.served_model_name == "Tiny-1"
        at = gateway.index(one.url)
        assert gateway[at - 1] == f"--{one.role}"
        if one.role == "prefill":
            assert gateway[at + 1] == value(one.argv, "--disaggregation-bootstrap-port") == str(one.bootstrap_port)
        else:
            assert "--disaggregation-bootstrap-port" not in one.argv
    assert value(gateway, "--port") == "30001"
    assert len(set(plan.ports)) == len(plan.ports) == 2 * 2 + 3 + 2


def test_extra_flags_go_to_whom_they_are_for_and_after_ours() -> None:
    spec = ClusterSpec(
        "c", MODEL, server_args=("--tp", "2"), prefill_args=("--chunked-prefill-size", "64"), decode_args=("--x",),
        gateway_args=("--policy", "random"),
    )  # fmt: skip
    prefill, decode, gateway = build(spec, picker()).processes
    assert prefill.argv[-4:] == ("--tp", "2", "--chunked-prefill-size", "64")
    assert decode.argv[-3:] == ("--tp", "2", "--x")
    assert gateway.argv[-2:] == ("--policy", "random")


@pytest.mark.parametrize(
    ("flags", "asked"),
    [((), True), (("--tokenizer-worker-num", "2"), False), (("--tokenizer_worker_num=2",), False)],
)
def test_the_gateway_asks_for_readiness_where_the_servers_can_answer(flags, asked) -> None:
    gateway = build(ClusterSpec("c", MODEL, decode_args=flags), picker()).gateway.argv
    assert ("--health-check-endpoint" in gateway) is asked
    if asked:
        assert value(gateway, "--health-check-endpoint") == "/pd/ready"


def test_plan_survives_json() -> None:
    plan = build(ClusterSpec("c", MODEL), picker())
    assert Plan.from_json(plan.to_json()) == plan
    json.loads(plan.to_json())


@pytest.mark.parametrize(
    ("fields", "named", "allowed"),
    [
        ({"prefill": 0}, "--prefill 0", "1 to 64"),
        ({"decode": -1}, "--decode -1", "1 to 64"),
        ({"decode": 65}, "--decode 65", "1 to 64"),
        ({"startup_timeout_s": 0}, "--timeout 0", "more than 0"),
        ({"name": "../x"}, "'../x'", "letters"),
        ({"server_args": ("stray",)}, "'stray'", "after --"),
        ({"server_args": ("--port=1",)}, "--port", "--model, --port"),
        ({"decode_args": ("--disaggregation_mode", "null")}, "--disaggregation-mode", "chooses"),
    ],
)
def test_bad_wishes_are_named(fields: dict, named: str, allowed: str) -> None:
    with pytest.raises(UserError) as error:
        ClusterSpec(**{"name": "c", "model": MODEL, **fields})
    assert named in str(error.value)
    assert allowed in str(error.value)
    assert error.value.exit_code == 2


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "a b", "x" * 65])
def test_names_that_are_no_folder(name: str) -> None:
    with pytest.raises(UserError):
        check_name(name)


def test_model_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is nothing"):
        check_model(tmp_path / "none")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="it is a file"):
        check_model(tmp_path / "file")
    with pytest.raises(UserError, match=r"no config\.json"):
        check_model(tmp_path)
    (tmp_path / "config.json").touch()
    assert check_model(tmp_path) == tmp_path


def test_flags_that_cannot_be_split() -> None:
    assert split_flags("--prefill-args", "--a 'b c'") == ("--a", "b c")
    with pytest.raises(UserError, match="--prefill-args"):
        split_flags("--prefill-args", "--a 'b")


def test_each_server_gets_its_own_cards() -> None:
    spec = ClusterSpec("c", MODEL, server_args=("--tp-size=4",)).on_cards(8)
    assert [value(one.argv, "--base-gpu-id") for one in build(spec, picker()).servers] == ["0", "4"]


def test_no_card_no_flag() -> None:
    assert "--base-gpu-id" not in build(ClusterSpec("c", MODEL).on_cards(0), picker()).servers[0].argv
