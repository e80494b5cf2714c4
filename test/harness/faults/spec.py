"""What a role of the fault matrix is made from. Importing it loads nothing of a server: the role's process does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from harness.roles import RoleSpec


@dataclass(frozen=True)
class FaultRoleSpec(RoleSpec):
    """``dtype``: what a decode calls the type of its KV cache."""

    dtype: str = "uint8"

    def build(self) -> Any:
        from harness.faults.role import FaultRole

        return FaultRole(self)
