"""The one loop, and what it talks to: bars, wishes to stop, signals."""

import functools
import os
import signal
import threading

import pytest
from run_sinks import Noting, StopAt

from bqfd_jax.runs.errors import Stopped
from bqfd_jax.runs.loop import follow
from bqfd_jax.runs.sinks import Sink, Terminal, stop_signals


class Course:
    """Goes on by threes."""

    title, unit, total = "counting", "step", 7

    def __init__(self, position=0):
        self.position, self.is_down = position, False

    def advance(self):
        self.position += 3
        return f"at {self.position}" if self.position > 3 else None

    def put_down(self):
        self.is_down = True
        return Stopped(f"at {self.position}")


def test_a_course_is_followed_to_its_end():
    course, sink = Course(), Noting()
    follow(course, sink)
    assert (course.position, course.is_down) == (9, False)
    assert sink.position == {"step": 9}
    assert sink.notes == ["at 6", "at 9"]
    # What is done already is not done again.
    follow(course, sink)
    assert course.position == 9


def test_a_course_is_put_down_where_the_sink_asks():
    course = Course()
    with pytest.raises(Stopped, match="at 3"):
        follow(course, StopAt(step=2))
    assert (course.position, course.is_down) == (3, True)


def test_the_silent_sink_is_silent_and_the_terminal_is_not(capfd):
    for sink in (Sink(), Terminal(lines=False), Terminal()):
        follow(Course(), sink)
        sink.say("a line")
        shown = capfd.readouterr()
        assert ("a line" in shown.out) == (type(sink) is Terminal and sink._lines)
        assert ("counting" in shown.err) == (type(sink) is Terminal)
        sink.warn("take care")
        assert ("WARNING: take care" in capfd.readouterr().out) == (type(sink) is Terminal)
    assert not Terminal().stop_asked()
    assert Terminal(lambda: True).stop_asked()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_is_a_wish_and_the_second_ends_at_once(number, request):
    if signal.getsignal(number) is signal.SIG_IGN:
        # As below nohup, where it would stay unheard.
        request.addfinalizer(functools.partial(signal.signal, number, signal.SIG_IGN))
        signal.signal(number, signal.SIG_DFL)
    before, told = signal.getsignal(number), []
    with stop_signals(lambda: told.append("soon")) as asked:
        assert not asked()
        os.kill(os.getpid(), number)
        assert asked()
        assert told == ["soon"]
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before


def test_what_is_ignored_stays_so():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_signals() as asked:
            signal.raise_signal(signal.SIGHUP)
            assert not asked()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_in_another_thread_the_wish_never_comes():
    answers, before = [], signal.getsignal(signal.SIGINT)

    def ask():
        with stop_signals() as asked:
            answers.append((asked(), signal.getsignal(signal.SIGINT) is before))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert answers == [(False, True)]
