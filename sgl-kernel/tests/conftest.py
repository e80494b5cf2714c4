"""Kernels run in Triton's interpreter here: no GPU needed, and what is read or written too far is seen.

pytest loads this before any test module, whichever folder that is in. Compiled kernels are checked on a GPU by
``benchmark/kernels/bench_index_k.py``.
"""

from collections.abc import Iterator

import pytest
import torch

import interpreting  # noqa: F401 (before the kernels)
from sgl_kernel_sm120.index_k.store import store_keys_kernel
from sgl_kernel_sm120.interpret import is_interpreted


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not is_interpreted(store_keys_kernel):
        raise pytest.UsageError("triton was imported before sgl-kernel/tests/conftest.py; run with TRITON_INTERPRET=1")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
