"""Every environment variable of ours, typed; nothing else in the project reads the environment.

The shape is upstream's (``sglang.srt.environ``): a class of fields, read by ``envs.NAME.get()``. One thing differs on
purpose: a bad value is an error that names the variable, the value and what is allowed, where upstream warns and goes
on with the default.
"""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Generic, TypeVar

from sgl_kernel_sm120.index_k import launch
from sgl_kernel_sm120.sparse_mla import launch as sparse
from sgl_kernel_sm120.sparse_mla.split import DEFAULT_TARGET_CTAS

T = TypeVar("T")

# A name that starts like this is meant for us. Upstream 0.5.23 has no variable with these prefixes.
OUR_PREFIXES = ("SGLANG_PD_", "SGLANG_DSV4_BF16_INDEX_K", "SGLANG_SM120_MMA")


class EnvError(ValueError):
    """A variable of ours has a value it cannot have."""


class EnvField(Generic[T]):
    """One variable: default, what is allowed, and what it does (shown in ``docs/environment.md``).

    ``get`` reads the process environment at each call; it raises :class:`EnvError` for a bad value.
    """

    allowed = "any text"
    name: str

    def __init__(self, default: T, help: str):
        self.default = default
        self.help = help

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def parse(self, text: str) -> T:
        """The value that ``text`` stands for; raises ``ValueError`` if none."""
        raise NotImplementedError

    def get(self, environ: Mapping[str, str] | None = None) -> T:
        text = (os.environ if environ is None else environ).get(self.name)
        if text is None:
            return self.default
        try:
            return self.parse(text)
        except ValueError:
            raise EnvError(f"{self.name}={text!r} is not valid; allowed: {self.allowed}") from None

    def is_set(self) -> bool:
        return self.name in os.environ


class EnvBool(EnvField[bool]):
    allowed = "1, true, yes, y, 0, false, no, n"

    def parse(self, text: str) -> bool:
        word = text.lower()
        if word in ("1", "true", "yes", "y"):
            return True
        if word in ("0", "false", "no", "n"):
            return False
        raise ValueError(text)


class EnvCount(EnvField[int]):
    allowed = "a whole number from 1"

    def parse(self, text: str) -> int:
        if not text.isdecimal() or int(text) < 1:
            raise ValueError(text)
        return int(text)


class EnvChoice(EnvField[int | None]):
    """One of a few whole numbers; not set, the code decides, as ``otherwise`` says."""

    def __init__(self, choices: tuple[int, ...], help: str, otherwise: str = "by GPU"):
        super().__init__(None, help)
        self.choices = choices
        self.otherwise = otherwise
        self.allowed = ", ".join(map(str, choices))

    def parse(self, text: str) -> int:
        if text not in map(str, self.choices):
            raise ValueError(text)
        return int(text)


class EnvSeconds(EnvField[float]):
    allowed = "a number of seconds above 0"

    def parse(self, text: str) -> float:
        seconds = float(text)
        if not 0 < seconds < math.inf:
            raise ValueError(text)
        return seconds


class EnvPath(EnvField[Path]):
    allowed = "an absolute path, ~ allowed"

    def parse(self, text: str) -> Path:
        path = Path(text).expanduser()
        if not path.is_absolute():
            raise ValueError(text)
        return path


class EnvHandedOn(EnvField[Path | None]):
    """A path that one process of ours sets for those it starts."""

    allowed = "an absolute path"
    otherwise = "not set"

    def __init__(self, help: str):
        super().__init__(None, help)

    def parse(self, text: str) -> Path:
        path = Path(text)
        if not path.is_absolute():
            raise ValueError(text)
        return path


class EnvFile(EnvHandedOn):
    """A file that may be named."""


class EnvFolder(EnvHandedOn):
    """A folder that may be named; not set, it is what ``otherwise`` says."""

    def __init__(self, help: str, otherwise: str):
        super().__init__(help)
        self.otherwise = otherwise


class Envs:
    SGLANG_PD_HOME = EnvPath(
        Path("~/.cache/sglang-pd").expanduser(),
        "Where demo models and the state and logs of local clusters are kept.",
    )
    SGLANG_PD_CPU_PLATFORM = EnvBool(
        True,
        "Make the stock command line serve on a machine without a GPU. 0 leaves upstream's behaviour there "
        "(it refuses to start). Where a GPU is present this does nothing.",
    )
    SGLANG_PD_PRELOAD = EnvBool(
        True,
        "On a machine without a GPU, `sglang-pd up` imports the server's modules once and forks every process of "
        "every server from there. 0 starts each server by the stock command line.",
    )
    SGLANG_PD_RELIABLE = EnvBool(
        True,
        "Transfer KV over NIXL with this package's classes, which build on upstream's. 0 leaves upstream's as they "
        "are. The two work with each other across a prefill-decode pair.",
    )
    SGLANG_PD_TRANSFER_TIMEOUT = EnvSeconds(
        60.0,
        "Seconds that prefill gives the writes of one chunk, from the moment they were posted. A chunk takes seconds "
        "at most even on a slow network; upstream waits for ever, and a stopped decode then holds a worker for ever.",
    )
    SGLANG_PD_RECONNECT_TIMEOUT = EnvSeconds(
        0.5,
        "Seconds that prefill tries to connect to a decode anew after a disconnect. A severed connection heals at the "
        "first try; a process that is gone never does, and its requests succeed elsewhere.",
    )
    SGLANG_PD_MIB_IN_FLIGHT = EnvCount(
        32,
        "MiB of KV that prefill has in flight to one decode, where that is more than two writes. A network of 400 "
        "Gbit/s and 100 us holds 5 MiB; several writes of 8 MiB keep it busy while one is seen to be done.",
    )
    SGLANG_PD_MIB_PER_WRITE = EnvCount(
        8,
        "MiB of KV of small chunks that prefill writes, and reports, together: at one page a room the calls cost more "
        "than the bytes.",
    )
    SGLANG_PD_PREFILL_BOOTSTRAPPING_TIMEOUT = EnvSeconds(
        300.0,
        "Seconds that prefill waits for decode's metadata. As long as upstream's: a decode without free pages sends it "
        "late, and rightly so.",
    )
    SGLANG_PD_PREFILL_WAITING_TIMEOUT = EnvSeconds(
        300.0, "Seconds from the metadata to the first write: queueing and computing. Upstream waits for ever."
    )
    SGLANG_PD_PREFILL_TRANSFERRING_TIMEOUT = EnvSeconds(
        300.0, "Seconds from the first write to the last, computing later chunks included. Upstream waits for ever."
    )
    SGLANG_PD_DECODE_RESOLVING_TIMEOUT = EnvSeconds(
        60.0, "Seconds to learn which prefill rank has a request; the bootstrap server answers in milliseconds."
    )
    SGLANG_PD_DECODE_BOOTSTRAPPING_TIMEOUT = EnvSeconds(
        60.0, "Seconds to fetch a prefill rank's address and register with it; both take milliseconds."
    )
    SGLANG_PD_DECODE_ALLOCATING_TIMEOUT = EnvSeconds(
        300.0, "Seconds that decode queues for KV pages. Upstream waits for ever."
    )
    SGLANG_PD_DECODE_WAITING_TIMEOUT = EnvSeconds(
        300.0,
        "Seconds from sending the metadata to the first sign of data. Prefill's queue and computing fall in here.",
    )
    SGLANG_PD_DECODE_TRANSFERRING_TIMEOUT = EnvSeconds(
        300.0, "Seconds from the first sign of data to prefill's word that all was sent."
    )
    SGLANG_PD_DECODE_FINISHING_TIMEOUT = EnvSeconds(
        30.0,
        "Seconds from that word until the auxiliary data is there and the scheduler takes over; usually milliseconds. "
        "Upstream waits for ever.",
    )
    SGLANG_PD_DECODE_VERIFYING_TIMEOUT = EnvSeconds(
        3600.0,
        "Seconds from there to the request's first batch, where its checksum is compared; only with "
        "`--disaggregation-enable-kv-checksum`. A decode whose batch is full lets requests queue.",
    )
    SGLANG_PD_SILENCE_TIMEOUT = EnvSeconds(
        5.0,
        "Seconds after which a peer that answers no ping counts as stopped: its requests end with 503, and succeed "
        "elsewhere. A control thread answers, not the scheduler's loop, so a busy peer does not fall silent; one that "
        "gets no CPU does, as we saw once at a load of 32 on 2 cores.",
    )
    SGLANG_PD_QUARANTINE_TIMEOUT = EnvSeconds(
        1200.0,
        "Seconds that decode keeps the KV pages of a failed request from reuse while its prefill neither acknowledged "
        "that its writes are over nor is proven to be gone. Nothing is proven when they have passed, but the memory "
        "has to come back one day: it is longer than the 924 s after which Linux gives up a connection that nobody "
        "answers. Upstream gives the pages to the next request after 30 s.",
    )
    SGLANG_PD_DRAIN_GRACE = EnvSeconds(
        3.0,
        "Seconds that a server which got SIGTERM goes on serving as before, except that it is not ready: as long as a "
        "gateway needs to notice, which asks every second and believes the second answer.",
    )
    SGLANG_PD_DRAIN_TIMEOUT = EnvSeconds(
        25.0,
        "Seconds after SIGTERM in which requests may finish; what is left then is answered with 503, and its stream "
        "ends with an error. Upstream waits for ever. Less than the 30 s after which Kubernetes kills; more for long "
        "answers, and there as well.",
    )
    SGLANG_PD_LOOP_TIMEOUT = EnvSeconds(
        20.0,
        "Seconds after which a scheduler whose loop does not come round is not ready, on `/pd/ready`. As long as "
        "upstream's `/health` waits; a batch takes less, an idle loop comes round every second.",
    )
    SGLANG_PD_STALL_SECONDS = EnvSeconds(
        30.0,
        "Seconds without any movement after which the watchdog reports that rooms are stuck (docs/stalls.md); half "
        "the phase's deadline where that is less, and of a transfer half of `SGLANG_PD_TRANSFER_TIMEOUT` at most. A "
        "tenth of the usual deadline, so that the report is there long before a request fails; longer than a batch.",
    )
    SGLANG_PD_STALL_DIR = EnvFolder("Where the watchdog puts its reports.", "stalls in SGLANG_PD_HOME")
    SGLANG_PD_STALL_FILES = EnvCount(50, "Reports kept in that folder, the last ones, of all servers that write there.")
    SGLANG_PD_SERVER_DIR = EnvHandedOn(
        "The folder where the processes of a server find each other, below the temporary folder (`TMPDIR`). A server "
        "sets it for its own processes, whatever it was.",
    )
    SGLANG_DSV4_BF16_INDEX_K = EnvBool(
        False,
        "Keep DeepSeek-V4's index keys in bf16: more of the right keys are chosen at long context, for 651 bytes more "
        "per token (docs/kernels.md). Prefill and decode must agree.",
    )
    SGLANG_DSV4_BF16_INDEX_K_LOGITS_MIB = EnvCount(
        256,
        "MiB that the scores of a layer's keys may take at a time; set aside before the pools are sized. Rows that do "
        "not fit are scored in turn.",
    )
    SGLANG_DSV4_BF16_INDEX_K_STORE_ROWS = EnvChoice(launch.ROW_BLOCKS, "Keys that a program stores.")
    SGLANG_DSV4_BF16_INDEX_K_STORE_NUM_WARPS = EnvChoice(launch.ROW_WARPS, "Warps of such a program.")
    SGLANG_DSV4_BF16_INDEX_K_QUERY_ROWS = EnvChoice(launch.ROW_BLOCKS, "Heads of queries that a program prepares.")
    SGLANG_DSV4_BF16_INDEX_K_QUERY_NUM_WARPS = EnvChoice(launch.ROW_WARPS, "Warps of such a program.")
    SGLANG_DSV4_BF16_INDEX_K_DECODE_BLOCK_KEYS = EnvChoice(
        launch.BLOCK_KEYS, "Keys that a program scores per step, in decode."
    )
    SGLANG_DSV4_BF16_INDEX_K_DECODE_NUM_WARPS = EnvChoice(launch.DECODE_WARPS, "Warps of such a program.")
    SGLANG_DSV4_BF16_INDEX_K_DECODE_NUM_STAGES = EnvChoice(
        launch.DECODE_STAGES, "Pipeline stages of such a program; all but one are keys on their way."
    )
    SGLANG_DSV4_BF16_INDEX_K_DECODE_PROGRAMS = EnvChoice(
        launch.PROGRAMS, "Such programs per multiprocessor that keys are split for."
    )
    SGLANG_DSV4_BF16_INDEX_K_PREFILL_ROWS = EnvChoice(
        launch.PREFILL_ROWS, "Query rows that a program scores together, in prefill."
    )
    SGLANG_DSV4_BF16_INDEX_K_PREFILL_BLOCK_KEYS = EnvChoice(launch.BLOCK_KEYS, "Keys that it scores per step.")
    SGLANG_DSV4_BF16_INDEX_K_PREFILL_NUM_WARPS = EnvChoice(
        tuple(sorted({warps for some in launch.PREFILL_WARPS.values() for warps in some})),
        "Warps of such a program; 1 row takes 4, 4 rows take 8.",
    )
    SGLANG_DSV4_BF16_INDEX_K_PREFILL_NUM_STAGES = EnvChoice(launch.PREFILL_STAGES, "Pipeline stages of such a program.")
    SGLANG_SM120_MMA_TARGET_CTAS = EnvCount(
        DEFAULT_TARGET_CTAS,
        "Thread blocks that all rows' candidates are at most divided into, in DeepSeek-V4's attention on SM120; "
        "each takes 66 KB of scratch. Set, our kernel attends in decode above 64 rows, where FlashInfer's ends; with "
        "`SGLANG_SM120_FLASHMLA_BACKEND=mma` everywhere (docs/kernels.md).",
    )
    SGLANG_SM120_MMA_TABLE = EnvFile(
        "A table of this card's costs, by which splits are chosen; `python -m sgl_kernel_sm120.tune` writes it. One of "
        "another card or of other kernels stops the server."
    )
    SGLANG_SM120_MMA_BLOCK_T = EnvChoice(sparse.BLOCK_T, "Keys that a thread block attends to per step.", "16")
    SGLANG_SM120_MMA_NUM_WARPS = EnvChoice(sparse.NUM_WARPS, "Its warps.", "8")
    SGLANG_SM120_MMA_NUM_STAGES = EnvChoice(
        sparse.NUM_STAGES, "Its pipeline stages. 32 keys per step leave room for 2.", "1"
    )
    SGLANG_PD_OVERLAP_MAX_ROWS = EnvCount(
        128,
        "Rows up to which DeepSeek-V4's attention overlaps on side streams where `SGLANG_OPT_USE_MULTI_STREAM_OVERLAP` "
        "is 1; a captured batch of more rows runs on one stream (docs/overlap.md). Upstream's own limit of 128 on "
        "Blackwell and 64 elsewhere holds as well.",
    )


envs = Envs()


def fields() -> dict[str, EnvField]:
    """Every variable of ours by name, in the order of :class:`Envs`."""
    return {name: field for name, field in vars(Envs).items() if isinstance(field, EnvField)}


def given() -> dict[str, str]:
    """The variables of ours that are set, by name, as they stand. None of them is a secret."""
    return {name: os.environ[name] for name in fields() if name in os.environ}


def validate(environ: Mapping[str, str] | None = None) -> list[str]:
    """Read every variable once.

    Returns a warning for each name that has one of our prefixes and is no variable of ours. Raises :class:`EnvError`
    that lists every bad value, not only the first.
    """
    environ = os.environ if environ is None else environ
    known = fields()
    errors = []
    for field in known.values():
        try:
            field.get(environ)
        except EnvError as error:
            errors.append(str(error))
    if errors:
        raise EnvError("; ".join(errors))
    return [
        _unknown(name, list(known)) for name in sorted(environ) if name.startswith(OUR_PREFIXES) and name not in known
    ]


def _unknown(name: str, known: list[str]) -> str:
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
    return f"unknown variable {name}; the nearest known one is {nearest[0]}"


def upstream(name: str) -> str | None:
    """A variable that is not ours (upstream's, a library's), as it stands; None where it is not set."""
    return os.environ.get(name)


def starting(prefixes: tuple[str, ...]) -> dict[str, str]:
    """Every variable whose name has one of the prefixes, by name, as it stands. Some may be secrets."""
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith(prefixes)}


def set_default(name: str, value: str) -> bool:
    """Set a variable of upstream's or of a library's unless the user did; returns whether it was set here."""
    if name in os.environ:
        return False
    os.environ[name] = value
    return True


def handed_on(values: Mapping[str, str]) -> dict[str, str]:
    """The environment for a process that this one starts: its own, with ``values`` set."""
    return {**os.environ, **values}


def take_over(values: Mapping[str, str]) -> None:
    """Set variables that the one who started this process chose for it."""
    os.environ.update(values)


def markdown() -> str:
    """The text of ``docs/environment.md``."""
    lines = [
        "# Environment variables",
        "",
        "Generated from `python/sglang_pd/environ.py` by `python -m sglang_pd.environ`; a test compares. A bad value",
        "stops the server at start with an error that names the variable, the value and what is allowed. An unknown",
        "name that starts with " + ", ".join(f"`{p}`" for p in OUR_PREFIXES) + " is warned about.",
        "",
        "| Variable | Default | Allowed | What it does |",
        "|---|---|---|---|",
    ]
    home = str(Path.home())
    for name, field in fields().items():
        default = str(int(field.default) if isinstance(field.default, bool) else field.default).replace(home, "~")
        default = field.otherwise if isinstance(field, EnvChoice | EnvHandedOn) else default
        lines.append(f"| `{name}` | `{default}` | {field.allowed} | {field.help} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(markdown(), end="")
