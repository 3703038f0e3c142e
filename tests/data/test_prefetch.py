"""Prefetching: in order, bounded, and no thread or open generator is left behind, however it ends."""

import gc
import threading
import time

import pytest

from quernel._machine import READING_THREAD, read_ahead


def readers():
    return [thread for thread in threading.enumerate() if thread.name == READING_THREAD]


class Numbers:
    """Numbers that are made one by one, and know how many were and whether their maker was closed."""

    def __init__(self, stop, fail_at=None):
        self.stop, self.fail_at, self.made, self.closed = stop, fail_at, 0, False

    def pieces(self):
        try:
            for k in range(self.stop):
                if k == self.fail_at:
                    raise OSError("the disk is gone")
                self.made += 1
                yield k
        finally:
            self.closed = True


def settled(numbers):
    """How many were made, when no more are."""
    made = -1
    while made != numbers.made:
        made = numbers.made
        time.sleep(0.05)
    return made


def test_all_pieces_come_in_order_and_the_thread_ends():
    numbers = Numbers(1000)
    assert list(read_ahead(numbers.pieces())) == list(range(1000))
    assert numbers.closed
    assert not readers()


@pytest.mark.parametrize("ahead", [1, 2, 5])
def test_no_more_is_made_than_there_is_room_for(ahead):
    numbers = Numbers(100)
    stream = read_ahead(numbers.pieces(), ahead)
    assert numbers.made == 0  # nothing happens before the first piece is asked for
    for taken in range(1, 5):
        next(stream)
        assert settled(numbers) == taken + ahead
    stream.close()


def test_reading_overlaps_the_work():
    """While one piece is worked on the next is made, by another thread."""
    makers = set()

    def pieces():
        for k in range(3):
            makers.add(threading.current_thread().name)
            yield k

    assert list(read_ahead(pieces())) == [0, 1, 2]
    assert makers == {READING_THREAD}


@pytest.mark.parametrize("how", ["closed", "forgotten", "failed"])
def test_whoever_stops_early_leaves_no_thread_behind(how):
    numbers = Numbers(100)
    stream = read_ahead(numbers.pieces())
    if how == "failed":
        with pytest.raises(ZeroDivisionError):
            [1 / (2 - k) for k in stream]
        assert readers()  # for the stream is still held here
        del stream
    else:
        next(stream)
        assert len(readers()) == 1
        stream.close() if how == "closed" else None
        del stream
        gc.collect()
    assert not readers()
    assert numbers.closed
    assert numbers.made < 10


def test_a_failure_of_the_maker_is_raised_in_its_place():
    numbers = Numbers(100, fail_at=3)
    stream, taken = read_ahead(numbers.pieces()), []
    with pytest.raises(OSError, match="the disk is gone"):
        taken.extend(iter(stream))
    assert taken == [0, 1, 2]
    assert not readers()
    assert numbers.closed


def test_a_stream_that_never_began_has_no_thread():
    stream = read_ahead(Numbers(3).pieces())
    assert not readers()
    stream.close()
