"""Importing this makes the index-K kernels run in Triton's interpreter, in this process.

Triton decides when it is imported, and for a kernel when that is. Both happen here, and the variable is taken back at
once: what other tests start must not inherit it.
"""

import importlib
import os
import sys

KERNELS = ("store", "query", "decode_logits", "prefill_logits")

if "triton" not in sys.modules:
    os.environ["TRITON_INTERPRET"] = "1"
    importlib.import_module("triton.experimental.gluon")  # a first launch would import it, and it asks for the variable
    for name in KERNELS:
        importlib.import_module(f"sgl_kernel_sm120.index_k.{name}")
    del os.environ["TRITON_INTERPRET"]
