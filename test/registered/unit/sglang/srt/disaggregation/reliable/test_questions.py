import threading

import pytest

from sglang.srt.disaggregation.reliable.questions import Questions

PATIENCE_S = 20.0


@pytest.fixture
def questions() -> Questions:
    return Questions()


def test_asking_waits_for_nobody_and_the_answer_comes_later(questions):
    go_on = threading.Event()
    answer = questions.ask("a", lambda: go_on.wait(PATIENCE_S))
    assert not answer.done()
    assert questions.take("a") is None
    go_on.set()
    assert answer.result(PATIENCE_S) is True
    assert questions.take("a") is answer


def test_an_open_question_is_asked_once_and_one_that_hangs_delays_no_other(questions):
    asked, go_on = [], threading.Event()

    def hangs():
        asked.append(1)
        return go_on.wait(PATIENCE_S)

    first = questions.ask("a", hangs)
    assert questions.ask("a", hangs) is first
    assert questions.ask("b", lambda: 7).result(PATIENCE_S) == 7
    assert not first.done()
    go_on.set()
    first.result(PATIENCE_S)
    assert asked == [1]


def test_who_took_the_answer_has_to_ask_again(questions):
    numbers = iter([1, 2])
    first = questions.ask("a", lambda: next(numbers))
    first.result(PATIENCE_S)
    assert questions.take("a") is first
    assert questions.take("a") is None
    assert questions.ask("a", lambda: next(numbers)).result(PATIENCE_S) == 2


def test_only_the_answer_one_has_is_forgotten(questions):
    old = questions.ask("a", lambda: 1)
    old.result(PATIENCE_S)
    questions.forget("a", old)
    new = questions.ask("a", lambda: 2)
    questions.forget("a", old)
    assert questions.ask("a", lambda: 3) is new
    assert new.result(PATIENCE_S) == 2


def test_an_error_is_the_answer(questions):
    answer = questions.ask("a", lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        answer.result(PATIENCE_S)
