"""sglang-pd: the bootstrap of the fork and its user commands. Importing this is cheap: no torch, no sglang."""

from __future__ import annotations

from sglang_pd.version import __version__

__all__ = ["__version__", "attach", "register"]


def attach() -> None:
    """Make our leaf packages importable under ``sglang`` from a source tree that is not installed.

    One append to ``sglang.__path__`` is enough: every folder below it is a namespace package upstream, so ours show
    beside upstream's. Appended, upstream's own files always win. Does nothing where the package is installed.
    """
    from pathlib import Path

    import sglang

    ours = str(Path(__file__).parents[1] / "sglang")
    if Path(ours).is_dir() and ours not in sglang.__path__:
        sglang.__path__.append(ours)


def register() -> None:
    """Entry point in upstream's group ``sglang.srt.plugins``: runs in every process of a server.

    Upstream logs and swallows an ``Exception`` of a plugin and would serve without it. Whatever is wrong here must
    stop the process instead, so it leaves as ``SystemExit``.
    """
    import sys
    import traceback

    from sglang_pd.environ import EnvError
    from sglang_pd.errors import UserError

    try:
        from sglang_pd import startup

        startup.run()
    except (UserError, EnvError) as error:
        sys.exit(f"sglang-pd: refusing to start: {error}")
    except Exception:  # noqa: BLE001 - any failure here would be swallowed upstream and leave a server without its hooks
        sys.exit(f"sglang-pd: refusing to start:\n{traceback.format_exc()}")
