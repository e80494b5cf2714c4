import pytest

from sglang_pd.cpu.detect import Decision, Machine, decide

BARE = Machine(None, ())
GPU = Machine("cuda", ("/dev/nvidia0",))
BROKEN = Machine(None, ("/dev/nvidia0", "/dev/nvidiactl"))


@pytest.mark.parametrize(
    ("machine", "cpu_engine", "platform", "enabled", "use_cpu"),
    [
        (BARE, None, None, True, True),
        (BARE, "1", None, True, True),
        (BARE, "0", None, True, False),
        (BARE, None, None, False, False),
        (BARE, None, "other_plugin", True, False),
        (GPU, None, None, True, False),
        (GPU, "0", None, True, False),
        (GPU, "1", None, True, True),
        (GPU, "1", None, False, False),
        (BROKEN, "1", None, True, True),
        (BROKEN, "0", None, True, False),
    ],
)
def test_the_users_choice_wins_and_a_gpu_is_left_alone(machine, cpu_engine, platform, enabled, use_cpu):
    assert decide(machine, cpu_engine, platform, enabled) == Decision(use_cpu)


def test_a_gpu_that_torch_cannot_use_is_refused_not_silently_replaced():
    decision = decide(BROKEN, None, None, True)
    assert not decision.use_cpu
    assert "/dev/nvidia0" in decision.refusal
    assert "SGLANG_USE_CPU_ENGINE=1" in decision.refusal
