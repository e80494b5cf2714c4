"""What a cluster runs: from the operator's wishes to processes with ports and command lines. Pure."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sglang_pd import ready
from sglang_pd.cluster.gpus import assign
from sglang_pd.cluster.ports import PortPicker, gateway_port
from sglang_pd.errors import UserError

Role = Literal["prefill", "decode", "gateway"]
MAX_SERVERS = 64
LOOPBACK = "127.0.0.1"

# Prefill: the worker that holds the longest matching prefix saves the most work; agentic rounds share long prefixes.
# Decode: a decode server is sent its KV pages, so affinity gains nothing there. In turn, so that a retry meets another
# server: by load, a server that died is the best choice of all. (And least_load takes an idle server's rate for 2000
# tokens/s, a busy one's for what it is, and sends everything to one of them until it asks again, 10 s later.)
GATEWAY_POLICY = ("--policy", "cache_aware", "--decode-policy", "round_robin")
# Without it the gateway logs two warnings a second for every server that is still loading.
GATEWAY_LOG = "warn,wfaas=error"
GATEWAY_DRAIN_S = 5
# A server's own word on its KV path, which its /health knows nothing of; it costs no generation, so it is asked often.
# One that died or leaves is out after 2 s, one that hangs after 6.
GATEWAY_HEALTH = (
    *("--health-check-endpoint", ready.PATH),
    *("--health-check-interval-secs", "1", "--health-check-timeout-secs", "2", "--health-failure-threshold", "2"),
)
# The breaker counts the failure of a pair against both: a decode that died took the only prefill out for a minute. The
# overload protection leaves out a server with 8 waiting requests as long as another one has fewer, also where that one
# is gone: every request was refused, and not tried again, while one decode of two restarted.
GATEWAY_BREAKER = ("--disable-circuit-breaker", "--disable-worker-overload-protection")
# The tries of a request, some 16 s from the first to the last, outlast that; the pause between two is never long, so
# that none waits long after there is a server again. The gateway does not look at Retry-After.
GATEWAY_RETRY = (
    *("--retry-max-retries", "20", "--retry-initial-backoff-ms", "50", "--retry-max-backoff-ms", "1000"),
    *("--retry-backoff-multiplier", "2"),
)
# With several of them upstream's HTTP workers load no plugins, and so have no such path.
TOKENIZER_WORKERS = "--tokenizer-worker-num"

# Flags that say where a server listens and what it is: chosen here, so that gateway and servers agree.
_OURS = (
    "--model-path",
    "--model",
    "--host",
    "--port",
    "--served-model-name",
    "--disaggregation-mode",
    "--disaggregation-bootstrap-port",
)


@dataclass(frozen=True)
class ProcessSpec:
    """One process. ``argv`` follows the interpreter; ``env`` is added to the inherited environment; ``port`` is where
    it answers HTTP on this machine; ``extra_ports`` are those it also listens on."""

    name: str
    role: Role
    argv: tuple[str, ...]
    port: int
    bootstrap_port: int | None = None
    extra_ports: tuple[int, ...] = ()
    env: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def ports(self) -> tuple[int, ...]:
        return (self.port, *([self.bootstrap_port] if self.bootstrap_port else []), *self.extra_ports)


@dataclass(frozen=True)
class Plan:
    """A whole cluster. ``startup_timeout_s``: how long all of it may take until it is ready; ``grace_s``: how long a
    process may take to end after SIGTERM before it is killed; ``hung_after_s``: how long a server may answer nothing
    before it is killed and started again, None for ever.

    An idle server of upstream's notices SIGTERM within 5 s and then asks its schedulers to end.
    """

    name: str
    model: str
    served_model_name: str
    processes: tuple[ProcessSpec, ...]
    startup_timeout_s: float = 1800.0
    grace_s: float = 10.0
    hung_after_s: float | None = None

    @property
    def gateway(self) -> ProcessSpec:
        return next(one for one in self.processes if one.role == "gateway")

    @property
    def servers(self) -> tuple[ProcessSpec, ...]:
        return tuple(one for one in self.processes if one.role != "gateway")

    @property
    def ports(self) -> tuple[int, ...]:
        return tuple(port for one in self.processes for port in one.ports)

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        fields: dict[str, Any] = json.loads(text)
        processes = tuple(
            ProcessSpec(**{**one, "argv": tuple(one["argv"]), "extra_ports": tuple(one["extra_ports"])})
            for one in fields.pop("processes")
        )
        return cls(processes=processes, **fields)


@dataclass(frozen=True)
class ClusterSpec:
    """What the operator asked for. Raises :class:`UserError` for what cannot be.

    ``server_args`` go to every server, ``prefill_args`` and ``decode_args`` to one role, ``gateway_args`` to the
    gateway; each after ours, so that they win. ``first_cards`` is the first GPU of each server, prefill servers first,
    or empty to leave it to upstream.
    """

    name: str
    model: Path
    prefill: int = 1
    decode: int = 1
    host: str = LOOPBACK
    port: int | None = None
    server_args: tuple[str, ...] = ()
    prefill_args: tuple[str, ...] = ()
    decode_args: tuple[str, ...] = ()
    gateway_args: tuple[str, ...] = ()
    first_cards: tuple[int, ...] = ()
    startup_timeout_s: float = 1800.0
    hung_after_s: float | None = None
    gateway_log: str = GATEWAY_LOG

    def __post_init__(self) -> None:
        check_name(self.name)
        for flag, count in (("--prefill", self.prefill), ("--decode", self.decode)):
            if not 1 <= count <= MAX_SERVERS:
                raise UserError(f"{flag} {count} is not possible; allowed: 1 to {MAX_SERVERS}")
        if self.startup_timeout_s <= 0:
            raise UserError(f"--timeout {self.startup_timeout_s:g} is not possible; allowed: more than 0 seconds")
        if self.hung_after_s is not None and self.hung_after_s <= 0:
            raise UserError(f"--hung-after {self.hung_after_s:g} is not possible; allowed: more than 0 seconds")
        for args in (self.server_args, self.prefill_args, self.decode_args):
            _check_server_args(args)

    @property
    def servers(self) -> list[tuple[str, Role]]:
        """Name and role of every server: prefill first."""
        prefill: list[tuple[str, Role]] = [(f"prefill-{i}", "prefill") for i in range(self.prefill)]
        return prefill + [(f"decode-{i}", "decode") for i in range(self.decode)]

    def server_flags(self, role: Role) -> tuple[str, ...]:
        return self.server_args + (self.prefill_args if role == "prefill" else self.decode_args)

    def on_cards(self, cards: int) -> ClusterSpec:
        """The same on a machine with that many GPUs; raises :class:`UserError` where they are too few."""
        flags = [self.server_flags(role) for _, role in self.servers]
        return dataclasses.replace(self, first_cards=assign(cards, flags))


def check_name(name: str) -> None:
    """Raises :class:`UserError` unless ``name`` can name a folder."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
        raise UserError(
            f"--name {name!r} cannot name a cluster; allowed: letters, digits, '.', '_' and '-', at most 64, "
            "the first a letter or a digit"
        )


def check_model(path: Path) -> Path:
    """The absolute path of a model folder; raises :class:`UserError` where it is none."""
    path = path.expanduser().absolute()
    if not path.is_dir():
        found = "it is a file" if path.exists() else "there is nothing"
        raise UserError(f"model folder {path}: {found}; give a folder with config.json, weights and tokenizer")
    if not (path / "config.json").is_file():
        raise UserError(
            f"model folder {path} has no config.json; give a folder with config.json, weights and tokenizer"
        )
    return path


def split_flags(flag: str, text: str) -> tuple[str, ...]:
    """Split the value of ``--prefill-args`` and the like as a shell would; raises :class:`UserError`."""
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise UserError(f"{flag} {text!r} cannot be split into flags: {error}") from None


def build(spec: ClusterSpec, picker: PortPicker) -> Plan:
    """Choose ports and write the command lines: prefill servers, decode servers, gateway."""
    port = gateway_port(spec.port, picker)
    cards = spec.first_cards or (None,) * len(spec.servers)
    servers = [_server(spec, *who, card, picker) for who, card in zip(spec.servers, cards, strict=True)]
    return Plan(
        name=spec.name,
        model=str(spec.model),
        served_model_name=spec.model.name,
        processes=(*servers, _gateway(spec, servers, port, picker.pick())),
        startup_timeout_s=spec.startup_timeout_s,
        hung_after_s=spec.hung_after_s,
    )


def _server(spec: ClusterSpec, name: str, role: Role, card: int | None, picker: PortPicker) -> ProcessSpec:
    port = picker.pick_server()
    bootstrap = picker.pick() if role == "prefill" else None
    argv = ["-m", "sglang.launch_server", "--model-path", str(spec.model), "--served-model-name", spec.model.name]
    argv += ["--disaggregation-mode", role, "--disaggregation-transfer-backend", "nixl"]
    argv += ["--host", LOOPBACK, "--port", str(port)]
    if bootstrap is not None:
        argv += ["--disaggregation-bootstrap-port", str(bootstrap)]
    if card is not None:
        argv += ["--base-gpu-id", str(card)]
    return ProcessSpec(name, role, (*argv, *spec.server_flags(role)), port, bootstrap)


def _gateway(spec: ClusterSpec, servers: list[ProcessSpec], port: int, metrics_port: int) -> ProcessSpec:
    argv = ["-m", "smg", "launch", "--pd-disaggregation"]
    for one in servers:
        argv += [f"--{one.role}", one.url, *([str(one.bootstrap_port)] if one.bootstrap_port else [])]
    argv += ["--host", spec.host, "--port", str(port)]
    # Its metrics port has a fixed default, which a second cluster would meet taken.
    argv += ["--prometheus-host", LOOPBACK, "--prometheus-port", str(metrics_port)]
    # The gateway starts with the servers and asks each until it answers.
    argv += [
        "--worker-startup-check-interval",
        "1",
        "--worker-startup-timeout-secs",
        str(int(spec.startup_timeout_s) + 60),
    ]
    flags = [*spec.server_args, *spec.prefill_args, *spec.decode_args]
    if TOKENIZER_WORKERS not in map(_flag, flags):
        argv += [*GATEWAY_HEALTH, *GATEWAY_BREAKER, *GATEWAY_RETRY]
    argv += ["--shutdown-grace-period-secs", str(GATEWAY_DRAIN_S), "--log-level", "warn", *GATEWAY_POLICY]
    env = {"RUST_LOG": spec.gateway_log}
    return ProcessSpec("gateway", "gateway", (*argv, *spec.gateway_args), port, None, (metrics_port,), env)


def _check_server_args(args: tuple[str, ...]) -> None:
    if args and not args[0].startswith("-"):
        raise UserError(f"unexpected argument {args[0]!r}; flags for the servers come after --, for example: -- --tp 2")
    for arg in args:
        if (flag := _flag(arg)) in _OURS:
            raise UserError(f"{flag} cannot be given to the servers: sglang-pd up chooses it (--model, --port, --name)")


def _flag(arg: str) -> str:
    """The flag that an argument is, in upstream's spelling."""
    return arg.partition("=")[0].replace("_", "-")
