"""Calls on sockets that never wait and keep the interpreter's lock.

Python gives the lock up around every call on a socket. A thread that works takes it then, and who gave it up waits for
milliseconds and costs two switches of threads: with six calls to a request, many times what the calls themselves take.
"""

from __future__ import annotations

import ctypes
import os
import socket

_libc = ctypes.PyDLL(None, use_errno=True)
_libc.recv.restype = _libc.send.restype = ctypes.c_ssize_t
_libc.recv.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.send.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int]
_libc.accept4.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int]


def accept(listener: socket.socket) -> socket.socket:
    """The next connection, one that blocks; ``listener`` must not block. Raises ``OSError``, and of its kinds
    ``BlockingIOError`` where there is none."""
    fd = _libc.accept4(listener.fileno(), None, None, socket.SOCK_CLOEXEC)
    if fd < 0:
        raise _error()
    return socket.socket(listener.family, socket.SOCK_STREAM, 0, fileno=fd)


def peek(connection: socket.socket, most: int) -> bytes | None:
    """At most ``most`` bytes of what has come, which stay there; None where nothing has. Raises ``OSError``."""
    return _recv(connection, most, socket.MSG_PEEK)


def take(connection: socket.socket, most: int) -> bytes | None:
    """The same, taken off."""
    return _recv(connection, most, 0)


def send(connection: socket.socket, data: bytes) -> int:
    """Send what fits into the socket's buffer; returns how many bytes. Raises ``OSError``."""
    sent: int = _libc.send(connection.fileno(), data, len(data), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
    if sent < 0:
        error = _error()
        if not isinstance(error, BlockingIOError):
            raise error
        return 0
    return sent


def close(connection: socket.socket) -> None:
    _libc.close(connection.detach())


def _recv(connection: socket.socket, most: int, flags: int) -> bytes | None:
    buffer = ctypes.create_string_buffer(most)
    size = _libc.recv(connection.fileno(), buffer, most, flags | socket.MSG_DONTWAIT)
    if size < 0:
        error = _error()
        if not isinstance(error, BlockingIOError):
            raise error
        return None
    return ctypes.string_at(buffer, size)


def _error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
