"""Upstream's DeepSeek-V4 attention layers under :mod:`sgl_kernel_sm120.streamcheck`, for :mod:`harness.lab`."""
