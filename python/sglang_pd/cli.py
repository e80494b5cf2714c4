"""``sglang-pd``: the operator's commands. Each lives with what it works on; here they are only put together."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from sglang_pd import environ
from sglang_pd.errors import UserError
from sglang_pd.version import __version__


def build_parser() -> argparse.ArgumentParser:
    from sglang_pd import check
    from sglang_pd.cluster import commands as cluster
    from sglang_pd.demo import commands as demo
    from sglang_pd.doctor import commands as doctor
    from sglang_pd.top import commands as top

    parser = argparse.ArgumentParser(prog="sglang-pd", description=__doc__)
    parser.add_argument("--version", action="version", version=f"sglang-pd {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for part in (cluster, top, doctor, demo, check):
        part.add_parsers(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit code: 0 done, 1 it failed, 2 the input was wrong, 130 interrupted."""
    argv = list(sys.argv[1:] if argv is None else argv)
    args = build_parser().parse_args(argv)
    try:
        for warning in environ.validate():
            print(f"sglang-pd: warning: {warning}", file=sys.stderr)
        return args.run(args)
    except (UserError, environ.EnvError) as error:
        print(f"sglang-pd: {error}", file=sys.stderr)
        return getattr(error, "exit_code", 2)
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
