"""What the threads of this process are doing: Python's own view always, py-spy's where native frames matter."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Any

# Frames of a thread that are kept, the innermost.
MOST_FRAMES = 60
# So far from the innermost frame a collective, or a wait for the GPU, is looked for.
NEAR = 12
PYSPY_TIMEOUT_S = 10.0
MOST_CHARACTERS = 100_000
PR_SET_PTRACER = 0x59616D61

_COLLECTIVE = ("/torch/distributed/", "/sglang/srt/distributed/")
_GPU = ("/torch/cuda/",)


class Place(StrEnum):
    """Where a thread is: in a ``collective`` (torch.distributed, gloo, NCCL), waiting for the ``gpu``, or elsewhere."""

    COLLECTIVE = "collective"
    GPU = "gpu"
    ELSEWHERE = "elsewhere"


@dataclass(frozen=True)
class Frame:
    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.function} ({self.file}:{self.line})"


@dataclass(frozen=True)
class Stack:
    """A thread; ``frames``: the innermost first. ``main``: the main thread, which is the scheduler's."""

    thread: str
    main: bool
    daemon: bool
    frames: tuple[Frame, ...]

    def entry(self) -> dict[str, Any]:
        return {**asdict(self), "frames": [str(frame) for frame in self.frames]}


def read() -> list[Stack]:
    """Every thread of this process that Python knows, the main thread first. Stops nothing."""
    threads = {thread.ident: thread for thread in threading.enumerate()}
    found = []
    for ident, frame in sys._current_frames().items():
        thread = threads.get(ident)
        name = f"unknown-{ident}" if thread is None else thread.name
        main = thread is threading.main_thread()
        found.append(Stack(name, main, thread is None or thread.daemon, _frames(frame)))
    return sorted(found, key=lambda stack: (not stack.main, stack.thread))


def read_main() -> Stack:
    """The main thread alone."""
    thread = threading.main_thread()
    frame = sys._current_frames().get(thread.ident or 0)
    return Stack(thread.name, True, False, () if frame is None else _frames(frame))


def place_of(frames: Sequence[Frame]) -> Place:
    """``frames``: the innermost first; pure."""
    near = [frame.file.replace(os.sep, "/") for frame in frames[:NEAR]]
    if any(mark in file for file in near for mark in _COLLECTIVE):
        return Place.COLLECTIVE
    return Place.GPU if any(mark in file for file in near for mark in _GPU) else Place.ELSEWHERE


def native(timeout_s: float = PYSPY_TIMEOUT_S) -> tuple[str | None, str | None]:
    """This process as py-spy sees it, native frames included; or None, and why not.

    py-spy holds all threads of the process while it reads: only for one that does no work anyway.
    """
    tool = find()
    if tool is None:
        return None, "there is no py-spy here (pip install py-spy)"
    _allow_children_to_trace()
    argv = [tool, "dump", "--native", "--pid", str(os.getpid())]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return None, f"py-spy did not end within {timeout_s:g} s"
    except OSError as error:
        return None, f"py-spy could not be started: {error}"
    if done.returncode != 0:
        last = (done.stderr.strip() or "it said nothing").splitlines()[-1]
        return None, f"py-spy failed: {last[:200]}"
    return done.stdout[:MOST_CHARACTERS], None


def find() -> str | None:
    """py-spy beside this interpreter, or on the path."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")


def _allow_children_to_trace() -> None:
    """Where the kernel lets a process be traced by its ancestors only (Yama): name ourselves as tracer, which stands
    for our children as well. Elsewhere it changes nothing, and its failure is py-spy's to report."""
    ctypes.CDLL(None).prctl(PR_SET_PTRACER, os.getpid(), 0, 0, 0)


def _frames(frame: FrameType) -> tuple[Frame, ...]:
    found: list[Frame] = []
    at: FrameType | None = frame
    while at is not None and len(found) < MOST_FRAMES:
        found.append(Frame(at.f_code.co_filename, at.f_lineno, at.f_code.co_name))
        at = at.f_back
    return tuple(found)
