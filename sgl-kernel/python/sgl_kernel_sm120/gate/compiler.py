"""Compile one configuration for one architecture with triton and its assembler, and say what it takes. No GPU needed.

What was measured is kept beside triton's own cache, by digest, so that a process that asks again compiles nothing.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource

from sgl_kernel_sm120.gate.arch import Arch
from sgl_kernel_sm120.gate.config import KernelConfig
from sgl_kernel_sm120.interpret import is_interpreted


class GateError(RuntimeError):
    """The gate cannot compile here, or a configuration does not compile."""


@dataclass(frozen=True)
class Measured:
    """Bytes of shared memory per block, registers per thread, bytes spilled, matrix instructions in the PTX."""

    shared: int
    registers: int
    spilled: int
    matrix: int


def measure(config: KernelConfig, arch: Arch) -> Measured:
    """Compile ``config`` unless that was done before. Raises :class:`GateError`."""
    if is_interpreted(config.kernel):
        raise GateError("kernels are interpreted in this process (TRITON_INTERPRET); the gate compiles them")
    kept = Path(triton.knobs.cache.dir) / "sgl_kernel_sm120_gate" / f"{config.digest(arch.name)}.json"
    if kept.exists():
        return Measured(**json.loads(kept.read_text()))
    measured = _compile(config, arch)
    kept.parent.mkdir(parents=True, exist_ok=True)
    part = kept.with_suffix(f".{tempfile.gettempprefix()}{id(measured)}")
    part.write_text(json.dumps(asdict(measured)))
    part.replace(kept)
    return measured


def _compile(config: KernelConfig, arch: Arch) -> Measured:
    names = config.kernel.arg_names
    unknown = set(config.types) | set(config.constants)
    if unknown != set(names):
        raise GateError(f"{config.name}: types and constants name {sorted(unknown ^ set(names))} wrongly or not at all")
    source = ASTSource(
        fn=config.kernel,
        signature={
            name: config.types[name].partition(":")[0] if name in config.types else "constexpr" for name in names
        },
        constexprs=dict(config.constants),
        attrs={(names.index(n),): [["tt.divisibility", 16]] for n, t in config.types.items() if t.endswith(":16")},
    )
    try:
        built = triton.compile(
            source,
            target=GPUTarget("cuda", arch.capability, 32),
            options={"num_warps": config.num_warps, "num_stages": config.num_stages},
        )
    except Exception as error:
        raise GateError(f"{config.name} does not compile for {arch.name}: {error}") from error
    ptx = built.asm["ptx"]
    registers, spilled = _assemble(ptx, arch)
    return Measured(built.metadata.shared, registers, spilled, ptx.count(config.matrix_on(arch.matrix)))


def _assemble(ptx: str, arch: Arch) -> tuple[int, int]:
    """Registers per thread and bytes spilled, as the assembler reports them for the options triton gives it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.ptx"
        path.write_text(ptx)
        command = [get_ptxas(arch.capability).path, "-v", "--regAllocOptLevel=2", f"--gpu-name={arch.name}"]
        done = subprocess.run([*command, str(path), "-o", f"{path}.o"], capture_output=True, text=True)
    if done.returncode:
        raise GateError(f"ptxas fails for {arch.name}: {done.stderr.strip()}")
    registers = re.search(r"Used (\d+) registers", done.stderr)
    if registers is None:
        raise GateError(f"ptxas reports no registers: {done.stderr.strip()}")
    return int(registers[1]), sum(map(int, re.findall(r"(\d+) bytes spill (?:stores|loads)", done.stderr)))
