"""The figures of the benchmark of /pd/status, and the clients that it uses."""

import json
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pd_status import bench_pd_status as bench
from pd_status import pollers

SCRIPT = Path(pollers.__file__)


def one(alone, polled, cpu_alone=1e-3, cpu_polled=1e-3, questions=10):
    return {
        "alone": {"rooms_per_s": alone, "cpu_s": cpu_alone, "rooms": 100},
        "polled": {"rooms_per_s": polled, "cpu_s": cpu_polled, "rooms": 100, "questions": questions},
    }


def test_the_ratio_is_the_median_of_the_pairs():
    result = {"pairs": [one(100, 99), one(200, 196), one(100, 50)]}
    middle, error = bench.ratio(result, "rooms_per_s")
    assert middle == 0.98
    assert error > 0


def test_the_cpu_of_an_answer_is_what_it_adds_to_the_rooms():
    result = {"pairs": [one(1, 1, 1e-3, 1.1e-3, 50), one(1, 1, 1e-3, 1.1e-3, 50)]}
    assert bench.cpu_of_an_answer(result) == pytest.approx(2 * 100 * 1e-4 / 100)


@pytest.fixture
def server():
    """Answers every connection, and notes each; yields its port and the notes."""
    listener, asked = socket.create_server(("127.0.0.1", 0)), []

    def serve():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(4096)
                asked.append(1)
                connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n{}")

    threading.Thread(target=serve, daemon=True).start()
    yield listener.getsockname()[1], asked
    listener.close()


def test_the_clients_ask_at_their_rate_between_go_and_stop(server):
    port, asked = server
    argv = [sys.executable, str(SCRIPT), "16", "0.2", str(port)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        for word in ("go", "stop"):
            process.stdin.write(word + "\n")
            process.stdin.flush()
            if word == "go":
                deadline = time.monotonic() + 20
                while len(asked) < 32:
                    assert time.monotonic() < deadline
                    time.sleep(0.01)
        found = json.loads(process.stdout.readline())
        process.stdin.close()
    assert found["failed"] == []
    assert len(found["seconds"]) >= 32


def test_a_question_that_fails_is_counted():
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    crowd = pollers.Pollers(4, 0.05, [port])
    crowd.go()
    time.sleep(0.1)
    found = crowd.stop()
    assert found["seconds"] == []
    assert found["failed"]
    assert all("ConnectionRefusedError" in one for one in found["failed"])
