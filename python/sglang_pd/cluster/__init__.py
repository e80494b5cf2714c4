"""A local cluster: prefill servers, decode servers and the gateway, started, watched and stopped as one.

``plan`` decides what runs, ``supervisor`` runs it in a process of its own, ``state`` is what the two sides of a command
share, and ``commands`` are ``sglang-pd up``, ``down`` and ``status``.
"""
