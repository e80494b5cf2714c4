"""Package layout.

Our leaf packages install beside upstream's files at upstream's import paths. Each is named here with its own
folder and there is no ``""`` key: with one, an editable install would put ``python/`` itself on ``sys.path`` and our
``python/sglang`` folder (no ``__init__.py``) could shadow nothing but confuse everything.
"""

from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent


def leaf_packages() -> dict[str, str]:
    """Every folder of ours that holds an ``__init__.py``, by import path."""
    found = {}
    for source in ("python", "sgl-kernel/python"):
        for init in sorted((ROOT / source).rglob("__init__.py")):
            folder = init.parent
            found[".".join(folder.relative_to(ROOT / source).parts)] = str(folder.relative_to(ROOT))
    return found


def version() -> str:
    scope: dict[str, str] = {}
    exec((ROOT / "python/sglang_pd/version.py").read_text(), scope)
    return scope["__version__"]


packages = leaf_packages()
setup(version=version(), packages=list(packages), package_dir=packages, package_data={"sglang_pd": ["py.typed"]})
