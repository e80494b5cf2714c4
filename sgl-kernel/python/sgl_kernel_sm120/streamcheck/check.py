"""One checked run of a program."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch.utils._python_dispatch import _disable_current_modes

from sgl_kernel_sm120.streamcheck import fakes, fixes
from sgl_kernel_sm120.streamcheck.findings import Finding, Kind
from sgl_kernel_sm120.streamcheck.kernels import Kernels
from sgl_kernel_sm120.streamcheck.machine import Machine
from sgl_kernel_sm120.streamcheck.recorder import Recorder


@dataclass(frozen=True)
class Check:
    """``machine``: what was seen; ``kernels``: to declare kernels with."""

    machine: Machine
    kernels: Kernels

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """What runs inside is not looked at, as what ran before the check."""
        with _disable_current_modes():
            yield

    @contextlib.contextmanager
    def one_program(self, name: str) -> Iterator[None]:
        """Graphs that are captured inside, and work between them, are parts of one: they hand memory on."""
        self.machine.program, outer = name, self.machine.program
        try:
            yield
        finally:
            self.machine.program = outer

    @property
    def findings(self) -> list[Finding]:
        """Every defect once, with the line of the next wait that would end a reuse."""
        return [
            replace(one, fix=one.fix + fixes.next_wait(self.machine, one)) if one.kind is Kind.REUSE else one
            for one in self.machine.findings
        ]


@contextlib.contextmanager
def checking(focus: tuple[str, ...] = (), run_kernels: bool = False) -> Iterator[Check]:
    """Everything that runs inside is checked.

    ``focus``: parts of the paths of the program's own files, whose lines reports name; without one, all files but those
    of torch, the standard library and the checker. ``run_kernels``: run the bodies of declared kernels, and compare
    what they touch with what is declared.
    """
    machine = Machine(focus)
    recorder = Recorder(machine)
    with fakes.patched(machine), torch.no_grad(), recorder:
        yield Check(machine, Kernels(recorder, run_kernels))
