import argparse
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_pd.demo import commands, manifest


def parse(*words):
    parser = argparse.ArgumentParser()
    commands.add_parsers(parser.add_subparsers())
    return parser.parse_args(["demo-model", *map(str, words)])


def test_importing_the_commands_is_cheap():
    heavy = {"torch", "transformers", "numpy", "tokenizers", "gguf", "rich", "sglang.srt"}
    code = f"import sys, sglang_pd.demo.commands; print(sorted({heavy!r} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_tiny_prints_only_the_folder(tmp_path, capsys):
    args = parse("--tiny", "--out", tmp_path / "tiny")
    assert args.run(args) == 0
    printed = capsys.readouterr()
    path = Path(printed.out.strip())
    assert path == tmp_path / "tiny"
    assert manifest.read(path).identity.name == "tiny-llama-0"
    assert "--dtype float32" in printed.err


def test_a_wheel_is_not_for_the_tiny_model(capsys):
    with pytest.raises(SystemExit):
        parse("--tiny", "--wheel", "x.whl")
    assert "not allowed with" in capsys.readouterr().err
