"""Ctrl-C is noted, and raised where the loop asks; twice, at once."""

from __future__ import annotations

import os
import signal

import pytest

from vidpipe.interrupts import Interrupts, Terminated


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_the_first_waits_for_the_loop():
    before = signal.getsignal(signal.SIGINT)
    with Interrupts() as interrupts:
        interrupts.check()
        press()
        finished = True
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()
    assert finished and signal.getsignal(signal.SIGINT) is before


def test_the_second_is_raised_at_once():
    with Interrupts(), pytest.raises(KeyboardInterrupt):
        press()
        press()


def test_sigterm_is_told_apart():
    with Interrupts() as interrupts:
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(Terminated):
            interrupts.check()
        with pytest.raises(KeyboardInterrupt) as error:
            signal.raise_signal(signal.SIGINT)
        assert not isinstance(error.value, Terminated)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
