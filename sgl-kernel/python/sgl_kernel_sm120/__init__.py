"""Kernels for SM120. Needs torch and triton only, never sglang; importing it touches no GPU."""

from sgl_kernel_sm120.version import __version__

__all__ = ["__version__"]
