"""A relay for the control messages between a prefill rank and its decodes, which can do to each what a network can.

    relay = Relay()
    relay.serve_prefill(("127.0.0.1", rank_port))       # and register relay.port in its place at the bootstrap server
    relay.serve_decode(decode_address)                  # its address in what it sends is replaced by one of ours
    rule = relay.rule("delivered", frames.drop, room=17)       # the next word of its success does not arrive
    assert rule.wait()                                  # it came, and was dropped

Every message is one of ZMQ, with its frames: a rule sees whole messages, and nothing that it does can desynchronise a
connection.
"""

from __future__ import annotations

import errno
import heapq
import itertools
import math
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import zmq

from harness.faults.frames import OVERTAKE, Action, Frames
from sglang.srt.disaggregation.reliable import wire

Address = tuple[str, int]

HOST = "127.0.0.1"
BIND_S = 2.0
# A message that is to be overtaken waits this long at most, in seconds: where no other comes, it is a delayed one.
OVERTAKEN_S = 0.3


@dataclass(eq=False)
class Rule:
    """Applies ``action`` to the next ``times`` messages that match; ``hits``: to how many it did so far."""

    kind: str
    action: Action
    room: int | None = None
    times: int = 1
    where: Callable[[Any], bool] = lambda message: True
    hits: int = 0
    _hit: threading.Event = field(default_factory=threading.Event)

    def matches(self, kind: str, message: Any) -> bool:
        rooms = getattr(message, "rooms", None) or (getattr(message, "room", None),)
        about = self.room is None or self.room in rooms
        return self.hits < self.times and kind == self.kind and about and self.where(message)

    def count(self) -> None:
        self.hits += 1
        self._hit.set()

    def wait(self, timeout_s: float = 5.0) -> bool:
        """Whether the rule met a message within the time."""
        return self._hit.wait(timeout_s)


class Link:
    """One way: what comes in at our port goes out to the target. Used by the relay's thread only, but for ``port``."""

    def __init__(self, context: zmq.Context, target: Address, parse: Callable[[Frames], Any], port: int = 0) -> None:
        self._context, self.parse = context, parse
        self.overtaken: list[Frames] = []
        self._bind(port)
        self.retarget(target)

    def _bind(self, port: int) -> None:
        self.inlet = self._context.socket(zmq.PULL)
        self.inlet.linger = 0
        self.inlet.rcvhwm = 0
        if port == 0:
            self.port = self.inlet.bind_to_random_port(f"tcp://{HOST}")
            return
        deadline = time.monotonic() + BIND_S
        while True:
            try:
                self.inlet.bind(f"tcp://{HOST}:{port}")
                return
            except zmq.ZMQError as error:
                # ZMQ closes the socket that had the port on a thread of its own.
                if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                    raise
                time.sleep(0.001)

    def retarget(self, target: Address) -> None:
        self.target = target
        self._outlet = self._context.socket(zmq.PUSH)
        self._outlet.linger = 0
        self._outlet.sndhwm = 0
        self._outlet.connect(f"tcp://{target[0]}:{target[1]}")

    def send(self, frames: Frames) -> None:
        """Nothing where the link was closed: a message that was held can outlive its receiver."""
        if self._outlet.closed:
            return
        self._outlet.send_multipart(frames, flags=zmq.NOBLOCK)

    def reopen(self, target: Address | None = None) -> None:
        """Break the connections at both ends; what was under way is lost. Our port stays."""
        self.close()
        self.overtaken.clear()
        self._bind(self.port)
        self.retarget(target or self.target)

    def close(self) -> None:
        self.inlet.close()
        self._outlet.close()


class Relay:
    """The links of one prefill rank: one for what its decodes send to it, one to each decode. Any thread may call."""

    def __init__(self) -> None:
        self._context = zmq.Context()
        self._to_prefill: Link | None = None
        self._to_decode: dict[Address, Link] = {}
        self._rules: list[Rule] = []
        self._pending: list[tuple[float, int, Link, Frames]] = []
        self._order = itertools.count()
        self._commands: queue.SimpleQueue[tuple[Callable[[], Any], queue.SimpleQueue[Any]]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._wake = self._context.socket(zmq.PUSH)
        self._wake.bind("inproc://wake")
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        assert self._to_prefill is not None
        return self._to_prefill.port

    def serve_prefill(self, rank: Address, new_port: bool = False) -> None:
        """Messages to our port go to ``rank`` from now on. A rank that replaces another closes the connections; with
        ``new_port`` ours changes too."""

        def serve() -> None:
            link = self._to_prefill
            if link is None or new_port:
                if link is not None:
                    link.close()
                self._to_prefill = Link(self._context, rank, wire.parse_to_prefill)
            else:
                link.reopen(rank)

        self._do(serve)

    def serve_decode(self, decode: Address, in_place_of: Address | None = None) -> None:
        """Messages for ``decode`` go through a port of ours; with ``in_place_of`` through that one's."""

        def serve() -> None:
            if in_place_of is None:
                self._to_decode[decode] = Link(self._context, decode, wire.parse_to_decode)
            else:
                link = self._to_decode[decode] = self._to_decode.pop(in_place_of)
                link.reopen(decode)

        self._do(serve)

    def prefill_is_gone(self) -> None:
        """Connections to our port are refused until another rank is served; what was under way is lost."""
        self._do(lambda: self._to_prefill.close() if self._to_prefill else None)

    def decode_is_gone(self, decode: Address) -> None:
        self._do(lambda: self._to_decode[decode].close())

    def forget_decode(self, decode: Address) -> None:
        self._do(lambda: self._to_decode.pop(decode).close())

    def rule(
        self,
        kind: str,
        action: Action,
        room: int | None = None,
        times: int = 1,
        where: Callable[[Any], bool] = lambda message: True,
    ) -> Rule:
        """``kind`` is that of the typed message in ``wire``; ``where`` looks at the message itself."""
        rule = Rule(kind, action, room, times, where)
        with self._lock:
            self._rules.append(rule)
        return rule

    def release(self) -> None:
        """Send what is held, in the order in which it came."""
        self._do(self._release)

    def clear(self) -> None:
        """Forget every rule, and send what is held."""
        with self._lock:
            self._rules.clear()
        self.release()

    def break_to_prefill(self) -> None:
        """Break the connections over which decodes talk to prefill; all ports stay."""
        self._do(lambda: self._to_prefill.reopen() if self._to_prefill else None)

    def break_to_decode(self, decode: Address) -> None:
        self._do(lambda: self._to_decode[decode].reopen())

    def close(self) -> None:
        self._do(self._stop)
        self._thread.join()
        self._wake.close(linger=0)
        self._context.destroy(linger=0)

    def _do(self, command: Callable[[], Any]) -> None:
        """Run it on the relay's thread, which owns the sockets; raises what it raises."""
        answer: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._commands.put((command, answer))
        with self._lock:
            self._wake.send(b"")
        error = answer.get(timeout=10)
        if error is not None:
            raise error

    def _stop(self) -> None:
        self._stopping = True

    def _release(self) -> None:
        held = sorted(entry for entry in self._pending if entry[0] == math.inf)
        self._pending = [entry for entry in self._pending if entry[0] != math.inf]
        heapq.heapify(self._pending)
        for _, _, link, frames in held:
            link.send(frames)

    def _run(self) -> None:
        self._stopping = False
        wake = self._context.socket(zmq.PULL)
        wake.connect("inproc://wake")
        while not self._stopping:
            links = [link for link in self._links() if not link.inlet.closed]
            ready = self._poll([wake, *(link.inlet for link in links)])
            if wake in ready:
                wake.recv()
                command, answer = self._commands.get()
                try:
                    command()
                except Exception as error:  # noqa: BLE001 (it goes to the caller, who raises it)
                    answer.put(error)
                else:
                    answer.put(None)
                continue
            for link in links:
                if link.inlet in ready:
                    self._pass_on(link, link.inlet.recv_multipart())
            while self._pending and self._pending[0][0] <= time.monotonic():
                _, _, link, frames = heapq.heappop(self._pending)
                if frames in link.overtaken:
                    link.overtaken.remove(frames)
                link.send(frames)
        wake.close(linger=0)
        for link in self._links():
            link.close()

    def _links(self) -> list[Link]:
        return [*self._to_decode.values(), *([self._to_prefill] if self._to_prefill else [])]

    def _poll(self, sockets: list[zmq.Socket]) -> set[zmq.Socket]:
        poller = zmq.Poller()
        for socket in sockets:
            poller.register(socket, zmq.POLLIN)
        left = self._pending[0][0] - time.monotonic() if self._pending else math.inf
        timeout = None if left == math.inf else max(0, math.ceil(left * 1000))
        return {socket for socket, _ in poller.poll(timeout)}

    def _pass_on(self, link: Link, frames: Frames) -> None:
        overtaken, link.overtaken = link.overtaken, []
        for wait_s, sent in self._verdict(link, frames):
            if wait_s == 0:
                link.send(sent)
            else:
                due = time.monotonic() + (OVERTAKEN_S if wait_s == OVERTAKE else wait_s)
                heapq.heappush(self._pending, (due, next(self._order), link, sent))
                if wait_s == OVERTAKE:
                    link.overtaken.append(sent)
        for late in overtaken:
            self._pending = [entry for entry in self._pending if entry[3] is not late]
            heapq.heapify(self._pending)
            link.send(late)

    def _verdict(self, link: Link, frames: Frames) -> list[tuple[float, Frames]]:
        frames = self._translate(frames)
        try:
            message: Any = link.parse(frames)
            kind = message.kind
        except wire.ParseError as error:
            message, kind = None, error.kind
        with self._lock:
            rule = next((rule for rule in self._rules if rule.matches(kind, message)), None)
            if rule is None:
                return [(0.0, frames)]
            verdict = rule.action(frames)
            rule.count()
        return verdict

    def _translate(self, frames: Frames) -> Frames:
        """Replace every role's address, two frames wherever they stand, by that of our port for it."""
        links = list(self._to_decode.items())
        if self._to_prefill is not None:
            links.append((self._to_prefill.target, self._to_prefill))
        known = {(ip.encode(), b"%d" % port): b"%d" % link.port for (ip, port), link in links}
        out = list(frames)
        for index, pair in enumerate(itertools.pairwise(frames)):
            if pair in known:
                out[index + 1] = known[pair]
        return out
