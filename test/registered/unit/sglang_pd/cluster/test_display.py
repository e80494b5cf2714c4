import io

from rich.console import Console

from sglang_pd.cluster.display import LineDisplay, LiveDisplay, create, table
from sglang_pd.cluster.phases import Phase
from sglang_pd.cluster.procfs import Identity
from sglang_pd.cluster.state import ClusterState, ProcessState


def state() -> ClusterState:
    def process(name: str, phase: Phase, detail: str = "") -> ProcessState:
        return ProcessState(name, "decode", 10000, "http://h", None, "/log", None, phase, detail, 100.0)

    processes = [
        process("prefill-0", Phase.ALLOCATING),
        process("decode-0", Phase.READY),
        process("gateway", Phase.WAITING, "1/2 workers"),
    ]
    return ClusterState("c", "/m", "m", Identity(1, 2), 100.0, processes)


def test_table_fits_80_columns() -> None:
    out = io.StringIO()
    Console(file=out, width=80).print(table(state(), 112.34, {}))
    lines = out.getvalue().splitlines()
    assert all(len(line.rstrip()) <= 80 for line in lines)
    assert "allocating cache" in lines[0]
    assert "12.3 s" in lines[0]
    assert "1/2 workers" in lines[2]


def test_a_line_per_change() -> None:
    out = io.StringIO()
    one, now = state(), LineDisplay(out)
    now.show(one)
    now.show(one)
    assert len(out.getvalue().splitlines()) == 3
    one.processes[0].phase = Phase.READY
    now.show(one)
    assert "prefill-0  ready" in out.getvalue().splitlines()[3]


def test_a_terminal_gets_the_table() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    assert isinstance(create(Terminal()), LiveDisplay)
    assert isinstance(create(io.StringIO()), LineDisplay)
