"""Calls for :mod:`harness.lab`: each builds upstream's classes for DeepSeek-V4, uses them, and returns what it saw."""
