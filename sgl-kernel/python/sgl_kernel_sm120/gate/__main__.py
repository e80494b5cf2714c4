"""``python -m sgl_kernel_sm120.gate NAME``: compile a table of configurations, print it, keep it with ``--out``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from sgl_kernel_sm120.gate import results
from sgl_kernel_sm120.gate.arch import ARCHS
from sgl_kernel_sm120.gate.compiler import measure
from sgl_kernel_sm120.gate.tables import TABLES
from sgl_kernel_sm120.gate.verdict import judge


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="sgl_kernel_sm120.gate", description=__doc__)
    parser.add_argument("table", choices=sorted(TABLES))
    parser.add_argument("--arch", choices=sorted(ARCHS), action="append", help="default: all")
    parser.add_argument("--only", action="append", help="configurations whose name contains this; may be repeated")
    parser.add_argument("--out", type=Path, help="keep the table as CSV here")
    args = parser.parse_args(arguments)
    rows = []
    for config in TABLES[args.table]():
        if args.only and not any(part in config.name for part in args.only):
            continue
        for name in args.arch or ARCHS:
            rows.append(judge(config, ARCHS[name], measure(config, ARCHS[name])))
            print(f"{config.name} {name}: {rows[-1].failures or 'ok'}", file=sys.stderr, flush=True)
    print(results.show(rows))
    failed = [row for row in rows if not row.passes]
    print(f"{len(rows) - len(failed)} of {len(rows)} pass")
    if args.out:
        results.write(args.out, rows)
    return 1 if failed or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
