"""Every launch of the sparse decode kernels that :mod:`.launch` lets through, for the compile gate.

One build serves every compress ratio, number of heads and number of splits: those are arguments. Only a result in fp32,
which tests ask for, is a build of its own.
"""

from __future__ import annotations

from sgl_kernel_sm120.gate.config import KernelConfig
from sgl_kernel_sm120.sparse_mla.attend import attend_kernel
from sgl_kernel_sm120.sparse_mla.decode import MERGE_SPLITS, MERGE_WARPS
from sgl_kernel_sm120.sparse_mla.launch import MAX_SPLITS, RESIDENT
from sgl_kernel_sm120.sparse_mla.layout import BLOCK_H
from sgl_kernel_sm120.sparse_mla.merge import merge_kernel

# 16 heads are too few for sm_90a's own instruction (wgmma takes 64 rows); mma.sync is what both have.
MATRIX = "mma.sync"
_PARTS = {"sink": "*fp32:16", "out": "*bf16:16", "lse": "*fp32:16", "part_out": "*fp32:16", "part_lse": "*fp32:16"}
_LISTS = {
    name: type_
    for one in ("window", "extra")
    for name, type_ in {
        one: "*u8:16",
        f"{one}_indices": "*i32:16",
        f"{one}_lens": "*i32:16",
        f"{one}_slots": "i32",
        f"{one}_units": "i32",
        f"{one}_stride": "i32",
        f"{one}_width": "i32",
    }.items()
}
_TYPES = {
    "q": "*bf16:16",
    "scale": "fp32",
    "heads": "i32",
    "q_row_stride": "i32:16",
    "q_head_stride": "i32:16",
    "has_extra": "i32",
    **_LISTS,
    **_PARTS,
}


def configs() -> list[KernelConfig]:
    attends = [
        KernelConfig(
            f"attend keys={block_t} warps={warps} stages={stages}",
            attend_kernel,
            _TYPES,
            {"BLOCK_T": block_t, "BLOCK_H": BLOCK_H, "ROUND": True, "UPCAST": False},
            warps,
            stages,
            matrix=MATRIX,
            blocks=dict(zip(("sm_120a", "sm_90a"), resident, strict=True)),
        )
        for (block_t, warps, stages), resident in RESIDENT.items()
    ]
    merge = KernelConfig(
        f"merge warps={MERGE_WARPS}",
        merge_kernel,
        {**_PARTS, "heads": "i32", "splits": "i32"},
        {"MAX_SPLITS": MAX_SPLITS, "BLOCK_S": MERGE_SPLITS, "ROUND": True, "UPCAST": False},
        MERGE_WARPS,
    )
    return [*attends, merge]
