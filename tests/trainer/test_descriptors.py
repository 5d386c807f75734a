"""File descriptors go from one process to another, in order."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from samegrad.trainer.descriptors import DescriptorPipe, receive_descriptor


def test_they_come_in_order_from_a_process_that_has_ended() -> None:
    before = set(Path("/proc/self/fd").iterdir())
    pipe = DescriptorPipe()
    pid = os.fork()
    if pid == 0:
        try:
            for text in (b"one", b"two"):
                fd = os.memfd_create("test")
                os.write(fd, text)
                pipe.send(fd)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    for text in (b"one", b"two"):
        fd = receive_descriptor(pipe.number)
        assert os.pread(fd, 9, 0) == text
        assert not os.get_inheritable(fd)
        os.close(fd)
    with pytest.raises(BlockingIOError):  # none has been sent
        pipe.receive()
    pipe.close()
    with pytest.raises(KeyError):
        receive_descriptor(pipe.number)
    assert len(set(Path("/proc/self/fd").iterdir())) <= len(before)


def test_it_goes_only_to_a_process_that_is_being_started() -> None:
    pipe = DescriptorPipe()
    with pytest.raises((TypeError, RuntimeError)):
        pickle.dumps(pipe)
    pipe.close()
