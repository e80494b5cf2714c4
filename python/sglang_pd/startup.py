"""What happens in each process of a server before it serves: check the contract, attach the hooks, verify them."""

from __future__ import annotations

import functools
import logging
from typing import Any

from sglang_pd import environ, hooks, upstream
from sglang_pd.upstream import ContractError

logger = logging.getLogger(__name__)


def run() -> None:
    """Check environment, upstream's version and every touch point, then attach the hooks.

    Raises ``EnvError`` or ``ContractError``; the caller turns either into an exit.
    """
    for warning in environ.validate():
        logger.warning("sglang-pd: %s", warning)
    upstream.check_version()
    rows = hooks.selected()
    broken = upstream.broken((row.target, row.recorded) for row in rows)
    if broken:
        raise ContractError(_listing("upstream is not what these hooks were written for", broken))
    hooks.attach(rows)


@functools.cache
def verify() -> None:
    """Exit unless every hook of ours is live in this process. Checked once: hooks do not come off."""
    missing = hooks.not_live(hooks.selected())
    if missing:
        raise SystemExit(f"sglang-pd: refusing to start: {_listing('these hooks did not take', missing)}")


def verify_before_resolution(server_args: Any, previous: Any) -> None:
    """Resolution step: see the table in ``hooks.py``."""
    verify()
    previous(server_args)


def verify_before_publish(*args: Any, **kwargs: Any) -> None:
    """BEFORE hook: see the table in ``hooks.py``. Returning None leaves the arguments as they are."""
    verify()


def _listing(what: str, reasons: dict[str, str]) -> str:
    return f"{what}:" + "".join(f"\n  {target}: {reason}" for target, reason in reasons.items())
