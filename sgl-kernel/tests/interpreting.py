"""Importing this makes our kernels run in Triton's interpreter, in this process.

Triton decides when it is imported, and for a kernel when that is. Both happen here, and the variable is taken back at
once: what other tests start must not inherit it.
"""

import importlib
import os
import sys

KERNELS = (
    "index_k.store",
    "index_k.query",
    "index_k.decode_logits",
    "index_k.prefill_logits",
    "sparse_mla.attend",
    "sparse_mla.merge",
)

if "triton" not in sys.modules:
    os.environ["TRITON_INTERPRET"] = "1"
    importlib.import_module("triton.experimental.gluon")  # a first launch would import it, and it asks for the variable
    for name in KERNELS:
        importlib.import_module(f"sgl_kernel_sm120.{name}")
    del os.environ["TRITON_INTERPRET"]
