"""Kernels run in Triton's interpreter here: no GPU needed, and every read past the end of something is seen.

Triton decides when it is imported, and when a kernel is. So both happen now, before any test module, and the variable
is taken back at once: what other tests start must not inherit it. Compiled kernels are checked on a GPU by
``benchmark/kernels/bench_index_k.py``.
"""

import os
import sys

if "triton" not in sys.modules:
    os.environ["TRITON_INTERPRET"] = "1"
    import triton.experimental.gluon  # noqa: F401 (a first launch would import it, and it asks for the variable)

    del os.environ["TRITON_INTERPRET"]

import pytest
import torch

from sgl_kernel_sm120.index_k.store import store_keys_kernel
from sgl_kernel_sm120.interpret import is_interpreted


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not is_interpreted(store_keys_kernel):
        raise pytest.UsageError("triton was imported before sgl-kernel/tests/conftest.py; run with TRITON_INTERPRET=1")


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
