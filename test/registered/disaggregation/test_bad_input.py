"""What a user can get wrong at the stock command line: a clear last word, an exit code, and no server left."""

import os
import socket
import subprocess
import sys
import textwrap

import pytest

from harness.servers import free_port

PREFILL = ("--disaggregation-mode", "prefill", "--disaggregation-transfer-backend", "nixl")


def launch(*flags, **env):
    """Run a fresh server until it ends by itself; one that stays fails the test by its timeout."""
    return subprocess.run(
        [sys.executable, "-m", "sglang.launch_server", *map(str, flags)],
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=150,
    )


def test_missing_model_folder(tmp_path, preloaded):
    done = preloaded.launch("--model-path", tmp_path / "nowhere")
    assert done.returncode == 2
    assert f"refusing to start: --model-path {tmp_path / 'nowhere'} does not exist" in done.stdout
    assert "Traceback" not in done.stdout


@pytest.mark.parametrize("flag", ["--port", "--disaggregation-bootstrap-port"])
def test_port_in_use(tiny_model, flag, preloaded):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = preloaded.launch("--model-path", tiny_model, *PREFILL, flag, port)
    assert done.returncode == 2
    assert f"{flag} {port} on 127.0.0.1: Address already in use, held by " in done.stdout
    assert f"pid {os.getpid()}" in done.stdout


def test_unknown_flag(tiny_model, preloaded):
    done = preloaded.launch("--model-path", tiny_model, "--no-such-flag")
    assert done.returncode == 2
    assert "unrecognized arguments: --no-such-flag" in done.stdout


def test_unknown_transfer_backend(tiny_model, preloaded):
    done = preloaded.launch("--model-path", tiny_model, "--disaggregation-transfer-backend", "nixxl")
    assert done.returncode == 2
    assert "invalid choice: 'nixxl' (choose from" in done.stdout


def test_backend_and_device_that_need_a_gpu(tiny_model, preloaded):
    done = preloaded.launch("--model-path", tiny_model, "--attention-backend", "flashinfer", "--device", "cuda")
    assert done.returncode == 2
    assert "--attention-backend flashinfer needs a GPU; allowed on a CPU: torch_native" in done.stdout
    assert "--device cuda was given" in done.stdout


def test_too_little_memory_for_the_pool(tiny_model, preloaded):
    """A share below nothing: what other processes of this machine free meanwhile cannot make up for it."""
    done = preloaded.launch("--model-path", tiny_model, "--port", free_port(), "--mem-fraction-static=-0.5")
    assert done.returncode != 0
    assert "Raise --mem-fraction-static" in done.stdout


def test_bad_environment_value(tiny_model):
    done = launch("--model-path", tiny_model, SGLANG_PD_PRELOAD="perhaps")
    assert done.returncode == 1
    assert "refusing to start: SGLANG_PD_PRELOAD='perhaps' is not valid; allowed: 1, true" in done.stdout


def test_wrong_upstream_version(tiny_model, tmp_path):
    fake = tmp_path / "sglang-0.5.24.dist-info"
    fake.mkdir()
    (fake / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.24\n")
    done = launch("--model-path", tiny_model, PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert "refusing to start: sglang 0.5.24 is installed; this sglang-pd works with sglang 0.5.23 only" in done.stdout


def test_a_hook_target_that_moved(tiny_model, tmp_path):
    """The table is made to name a target that upstream does not have, as it would after upstream renamed it."""
    (tmp_path / "sitecustomize.py").write_text(
        textwrap.dedent("""
            import dataclasses
            from sglang_pd import hooks
            first, *rest = hooks.HOOKS
            hooks.HOOKS = (dataclasses.replace(first, target=first.target + "_renamed"), *rest)
        """)
    )
    done = launch("--model-path", tiny_model, PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert "refusing to start: upstream is not what these hooks were written for" in done.stdout
    assert "_renamed is gone" in done.stdout
