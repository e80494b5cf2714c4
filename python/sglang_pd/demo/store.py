"""Build a model directory once: cached, whole or not there at all, and safe against a second builder."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sglang_pd.demo import manifest
from sglang_pd.demo.manifest import Identity
from sglang_pd.demo.progress import Progress, silent
from sglang_pd.environ import envs
from sglang_pd.errors import UserError

# Writes the model's files into the first folder; the second is for what is needed only meanwhile.
Writer = Callable[[Path, Path], None]


def default_directory(name: str) -> Path:
    return envs.SGLANG_PD_HOME.get() / "models" / name


def ensure(target: Path, identity: Identity, write: Writer, progress: Progress = silent) -> Path:
    """The directory with the model ``identity``, built by ``write`` unless it is there already.

    Returns ``target`` with symbolic links resolved. Raises :class:`UserError` where something else is at ``target``
    (it stays untouched) or where it cannot be written.
    """
    target = target.expanduser().resolve()
    try:
        if manifest.is_complete(target, identity):
            return target
        _refuse_foreign(target, identity)
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(_beside(target, "lock"), progress):
            if not manifest.is_complete(target, identity):
                _refuse_foreign(target, identity)
                _build(target, identity, write)
    except OSError as error:
        raise UserError(f"cannot build {identity.name} at {target}: {error}", exit_code=1) from error
    return target


def _beside(target: Path, role: str) -> Path:
    return target.with_name(f".{target.name}.sglang-pd-{role}")


def _refuse_foreign(target: Path, identity: Identity) -> None:
    if not target.exists():
        return
    advice = "nothing was changed; choose another --out"
    if not target.is_dir():
        raise UserError(f"{target} exists and is not a folder; {advice}")
    if not any(target.iterdir()):
        return
    if not (target / manifest.NAME).exists():
        raise UserError(f"{target} exists and is not a model that sglang-pd has built; {advice}")
    found = manifest.read(target)
    if found is not None and found.identity.name != identity.name:
        raise UserError(f"{target} holds {found.identity.name}, not {identity.name}; {advice}")


@contextmanager
def _locked(path: Path, progress: Progress) -> Iterator[None]:
    """Hold the lock file ``path``, which is gone afterwards.

    Its last holder removes it, so whoever waited for it looks whether the file it locked is still the one there.
    """
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                progress("wait for another build", 0, 0)
                fcntl.flock(handle, fcntl.LOCK_EX)
            if not _is_at(handle, path):
                continue
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return
        finally:
            os.close(handle)


def _is_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def _build(target: Path, identity: Identity, write: Writer) -> None:
    staging = _beside(target, "building")
    # The lock is ours, so what lies here was left by a builder that was killed.
    shutil.rmtree(staging, ignore_errors=True)
    model, scratch = staging / "model", staging / "scratch"
    try:
        model.mkdir(parents=True)
        scratch.mkdir()
        write(model, scratch)
        manifest.write(model, identity)
        _swap(model, target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _swap(model: Path, target: Path) -> None:
    """Put ``model`` at ``target``, in place of a damaged or outdated model of ours."""
    if not target.exists() or not any(target.iterdir()):
        os.rename(model, target)
        return
    previous = manifest.read(target)
    ours = {path.name for path in model.iterdir()} | set(previous.files if previous else ())
    extra = sorted(path.name for path in target.iterdir() if path.name not in ours)
    if extra:
        raise UserError(
            f"{target} has to be built anew and holds files that are not the model's: {', '.join(extra)}; "
            "nothing was changed; move them away or choose another --out"
        )
    replaced = _beside(target, "replaced")
    shutil.rmtree(replaced, ignore_errors=True)
    os.rename(target, replaced)
    try:
        os.rename(model, target)
    except OSError:
        os.rename(replaced, target)
        raise
    shutil.rmtree(replaced)
