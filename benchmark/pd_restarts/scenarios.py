"""What is done in each scenario; data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pd_restarts.join import Join
from pd_restarts.steps import Hang, InTurn, KillScheduler, Measured, Pause, Restart, Step

# Upstream's decode asks each prefill every 5 s whether it lives. With this, every restart is over before it asks again.
LONG_HEARTBEAT = {"SGLANG_DISAGGREGATION_HEARTBEAT_INTERVAL": "300"}
# Other pages of other numbers, which a decode may well have after a change of its flags.
OTHER_PAGES = ("--page-size", "16", "--kv-cache-dtype", "bfloat16")
HUNG_AFTER_S = 5.0
WATCHED = ("--hung-after", f"{HUNG_AFTER_S:g}")
LEAD_S = 3.0
TAIL_S = 8.0


@dataclass(frozen=True)
class Sizes:
    """What a user may make smaller: ``hang`` seconds that a hung server stands still, ``restarts`` in the long row,
    and in ``many``, where the resources are measured."""

    hang: float = 60.0
    restarts: int = 10
    many: int = 50


@dataclass(frozen=True)
class Scenario:
    """``title``: a line of the table. ``steps`` are run one after the other while the load goes on, ``LEAD_S`` after
    its beginning; ``env`` is that of every process, ``up_flags`` are more flags of `sglang-pd up`."""

    name: str
    title: str
    steps: tuple[Step, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    up_flags: tuple[str, ...] = ()


def scenarios(sizes: Sizes) -> dict[str, Scenario]:
    """By name, in the order in which they are run."""
    pair, decodes = ("prefill", "decode"), ("decode-0", "decode-1")
    hang = f"{sizes.hang:g} s"
    many = Measured(Restart(("decode-1",)), sizes.many)
    found = (
        Scenario("undisturbed", "nothing, once more", (Pause(20.0),)),
        Scenario("hang-decode", f"one decode hangs for {hang}", (Hang("decode", sizes.hang),)),
        Scenario("hang-prefill", f"one prefill hangs for {hang}", (Hang("prefill", sizes.hang),)),
        *(
            Scenario(
                f"hang-{role}-watched",
                f"one {role} hangs; up --hung-after {HUNG_AFTER_S:g} kills it",
                (Hang(role, sizes.hang),),
                up_flags=WATCHED,
            )
            for role in ("decode", "prefill")
        ),
        Scenario("kill-decode", "kill -9 and restart of one decode", (Restart(("decode",)),)),
        Scenario("kill-prefill", "kill -9 and restart of one prefill", (Restart(("prefill",)),)),
        Scenario("kill-pair", "kill -9 and restart of a prefill and a decode", (Restart(pair),)),
        Scenario("term-decode", "SIGTERM and restart of one decode", (Restart(("decode",), kill=False),)),
        Scenario("term-prefill", "SIGTERM and restart of one prefill", (Restart(("prefill",), kill=False),)),
        Scenario("term-pair", "SIGTERM and restart of a prefill and a decode", (Restart(pair, kill=False),)),
        Scenario(
            "kill-decode-unseen",
            "kill -9 and restart of one decode within a heartbeat",
            (Restart(("decode",)),),
            LONG_HEARTBEAT,
        ),
        Scenario(
            "kill-prefill-unseen",
            "kill -9 and restart of one prefill within a heartbeat",
            (Restart(("prefill",)),),
            LONG_HEARTBEAT,
        ),
        Scenario(
            "decodes-in-turn",
            f"{sizes.restarts} restarts of decodes in a row; prefills run on",
            (InTurn(decodes, sizes.restarts),),
        ),
        Scenario(
            "dead-scheduler", "a prefill's scheduler killed, its HTTP process left", (KillScheduler("prefill-0"),)
        ),
        Scenario("other-pages", "a decode with other pages joins", (Join(OTHER_PAGES),)),
        Scenario("many-restarts", f"{sizes.many} restarts of one decode; what prefill holds", (many,)),
    )
    return {one.name: one for one in found}
