"""Prefill-decode transfer over NIXL, on upstream's classes."""
