"""The manifests: well-formed, and in keeping with the servers, the gateway and each other."""

import argparse
import importlib.util
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from sglang_pd import ready
from sglang_pd.environ import envs

DEPLOY = Path(__file__).parents[4] / "deploy"
FOLDER = DEPLOY / "kubernetes"
KUSTOMIZATION = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
ALL = [one for name in KUSTOMIZATION["resources"] for one in yaml.safe_load_all((FOLDER / name).read_text())]
DEPLOYMENTS = {one["metadata"]["name"]: one for one in ALL if one["kind"] == "Deployment"}
SERVERS = [DEPLOYMENTS["sglang-pd-prefill"], DEPLOYMENTS["sglang-pd-decode"]]
GATEWAY = DEPLOYMENTS["sglang-pd-gateway"]
# From the end of the drain to the end of the process.
EXIT_S = 5.0
VERSION = "1.32"


def name_of(manifest) -> str:
    return f"{manifest['kind']}-{manifest['metadata']['name']}"


def pod_of(deployment):
    return deployment["spec"]["template"]["spec"]


def container_of(deployment):
    [container] = pod_of(deployment)["containers"]
    return container


def flags_of(container) -> dict[str, str]:
    pairs = (arg.removeprefix("--").partition("=") for arg in container["args"] if arg.startswith("--"))
    return {name: value for name, _, value in pairs}


@pytest.mark.skipif(
    importlib.util.find_spec("kubernetes_validate") is None, reason="needs the package kubernetes-validate"
)
@pytest.mark.parametrize("manifest", ALL, ids=name_of)
def test_manifests_follow_kubernetes_own_schema(manifest):
    import kubernetes_validate

    kubernetes_validate.validate(manifest, VERSION, strict=True)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
def test_kubectl_can_put_them_together():
    done = subprocess.run(["kubectl", "kustomize", FOLDER], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert {name_of(one) for one in yaml.safe_load_all(done.stdout)} == {name_of(one) for one in ALL}


def test_every_file_is_used():
    apart = {"kustomization.yaml", "pod-monitor.yaml"}
    assert {path.name for path in FOLDER.glob("*.yaml")} == {*KUSTOMIZATION["resources"], *apart}


@pytest.mark.parametrize("server", SERVERS, ids=name_of)
def test_kubernetes_waits_until_a_server_has_drained(server):
    config = next(one for one in ALL if one["kind"] == "ConfigMap")["data"]
    timeout = float(config.get("SGLANG_PD_DRAIN_TIMEOUT", envs.SGLANG_PD_DRAIN_TIMEOUT.default))
    assert pod_of(server)["terminationGracePeriodSeconds"] >= timeout + EXIT_S
    assert "lifecycle" not in container_of(server)


@pytest.mark.parametrize("server", SERVERS, ids=name_of)
def test_probes_ask_for_the_kv_path(server):
    container = container_of(server)
    for probe in ("startupProbe", "readinessProbe"):
        assert container[probe]["httpGet"] == {"path": ready.PATH, "port": "http"}
        assert container[probe]["timeoutSeconds"] > ready.ANSWER_TIMEOUT_S
    liveness = container["livenessProbe"]
    assert liveness["periodSeconds"] * (liveness["failureThreshold"] - 1) >= 20
    assert {port["name"]: port["containerPort"] for port in container["ports"]}["http"] == 30000


@pytest.mark.parametrize(
    ("answer", "alive"),
    [
        ('{"ready": true, "reasons": []}', True),
        ('{"ready": false, "reasons": ["it is shutting down"]}', True),
        ('{"ready": false, "reasons": ["rank tp1: no answer within 1.5 s"]}', False),
        (None, False),
    ],
)
def test_liveness_tells_what_hangs_from_what_is_not_ready(answer: str | None, alive: bool, tmp_path: Path):
    curl = tmp_path / "curl"
    curl.write_text("#!/bin/sh\nexit 28\n" if answer is None else f"#!/bin/sh\necho '{answer}'\n")
    curl.chmod(0o755)
    command = container_of(SERVERS[0])["livenessProbe"]["exec"]["command"]
    done = subprocess.run(command, env={"PATH": f"{tmp_path}:/usr/bin:/bin", "POD_IP": "10.0.0.1"}, capture_output=True)
    assert (done.returncode == 0) == alive


def test_the_gateway_finds_the_pods():
    args = container_of(GATEWAY)["args"]
    for server in SERVERS:
        labels = server["spec"]["template"]["metadata"]["labels"]
        role = labels["app.kubernetes.io/component"]
        at = args.index(f"--{role}-selector")
        assert args[at + 1 : at + 3] == [f"{key}={value}" for key, value in labels.items()]
        assert flags_of(container_of(server))["port"] == flags_of(container_of(GATEWAY))["service-discovery-port"]
        assert server["spec"]["selector"]["matchLabels"] == labels
    annotations = SERVERS[0]["spec"]["template"]["metadata"]["annotations"]
    bootstrap = flags_of(container_of(SERVERS[0]))["disaggregation-bootstrap-port"]
    assert annotations["sglang.ai/bootstrap-port"] == bootstrap


def test_the_gateway_has_the_flags_of_the_units():
    text = " ".join(container_of(GATEWAY)["args"]).replace("=", " ")
    assert " ".join(shlex.split((DEPLOY / "systemd/gateway-flags").read_text())) in text


def test_the_gateway_understands_its_flags():
    from smg.router_args import RouterArgs

    parser = argparse.ArgumentParser()
    RouterArgs.add_cli_args(parser)
    _, unknown = parser.parse_known_args(container_of(GATEWAY)["args"])
    assert unknown == []


def test_control_ports_are_for_the_two_roles_alone():
    policy = next(one for one in ALL if one["kind"] == "NetworkPolicy")["spec"]
    anything, http = policy["ingress"]
    assert "ports" not in anything
    assert [list(peer) for peer in anything["from"]] == [["podSelector"]]
    assert anything["from"][0]["podSelector"] == policy["podSelector"]
    assert http["ports"] == [{"port": 30000, "protocol": "TCP"}]
