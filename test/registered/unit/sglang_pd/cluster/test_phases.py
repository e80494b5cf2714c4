import pytest

from sglang_pd.cluster.phases import Phase, after_health, after_line, after_workers, registered

# As upstream 0.5.23 wrote them.
START = (
    ("launch_server.py:71: UserWarning: 'python -m sglang.launch_server' is still supported", Phase.IMPORTING),
    ("[2026-11-30 08:46:12] server_args={'model_path': '/m', 'port': 1}", Phase.SPAWNING),
    ("[2026-11-30 08:46:20] Init torch distributed begin.", Phase.SPAWNING),
    ("[2026-11-30 08:46:21] Load weight begin. avail mem=20.00 GB", Phase.LOADING),
    ("[2026-11-30 08:46:22] Load weight end. elapsed=0.52 s, type=LlamaForCausalLM, avail mem=1 GB", Phase.ALLOCATING),
    ("[2026-11-30 08:46:22] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 16384", Phase.ALLOCATING),
    ("[2026-11-30 08:46:23] Capture target decode CUDA graph begin. backend=full, num_tokens=[1]", Phase.CAPTURING),
    ("[2026-11-30 08:46:24] Capture target decode CUDA graph end. elapsed=1.00 s", Phase.CAPTURING),
    ("INFO:     Uvicorn running on http://127.0.0.1:1 (Press CTRL+C to quit)", Phase.WARMING),
    ("[2026-11-30 08:46:30] Start of pd disaggregation warmup ...", Phase.WARMING),
)


def test_a_start_passes_the_phases() -> None:
    phase = Phase.IMPORTING
    for line, expected in START:
        phase = after_line(phase, line)
        assert phase is expected, line


@pytest.mark.parametrize("phase", [Phase.WARMING, Phase.READY, Phase.FAILED])
def test_no_line_leads_back(phase: Phase) -> None:
    for line, _ in START:
        assert after_line(phase, line) is phase


@pytest.mark.parametrize(
    ("status", "expected"), [(None, Phase.LOADING), (503, Phase.WARMING), (500, Phase.WARMING), (200, Phase.READY)]
)
def test_health(status: int | None, expected: Phase) -> None:
    assert after_health(Phase.LOADING, status) is expected


def test_ready_stays_ready_and_stopping_stopping() -> None:
    assert after_health(Phase.READY, 503) is Phase.READY
    assert after_health(Phase.STOPPING, 200) is Phase.STOPPING


def test_gateway_needs_every_worker_healthy() -> None:
    urls = ["http://127.0.0.1:1", "http://127.0.0.1:2"]
    answer = {
        "workers": [
            {"url": "http://127.0.0.1:1/", "is_healthy": True},
            {"url": "http://127.0.0.1:2", "is_healthy": False},
            {"url": "http://127.0.0.1:3", "is_healthy": True},
        ]
    }
    assert registered(answer, urls) == ["http://127.0.0.1:1"]
    assert registered({}, urls) == []
    assert after_workers(Phase.STARTING, 1, 2) is Phase.WAITING
    assert after_workers(Phase.WAITING, 2, 2) is Phase.READY
