"""Which words mean which devices, and what is said about words that mean none."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from samegrad.errors import ConfigurationError, DeviceUnavailable
from samegrad.workers.devices import device_words, parse_devices

CPU, CPU2, CPU3 = ["cpu"], ["cpu"] * 2, ["cpu"] * 3


@pytest.mark.parametrize(
    ("devices", "cuda", "expected"),
    [
        # a number
        (1, 0, CPU),
        (3, 0, CPU3),
        ("3", 0, CPU3),
        (1024, 0, ["cpu"] * 1024),
        (1, 2, ["cuda:0"]),
        (2, 2, ["cuda:0", "cuda:1"]),
        ("2", 8, ["cuda:0", "cuda:1"]),
        ("002", 0, CPU2),
        # kinds, how many, which
        ("cpu", 0, CPU),
        ("cpu", 4, CPU),
        ("cpu:1", 0, CPU),
        ("cpu:3", 4, CPU3),
        ("cuda", 1, ["cuda:0"]),
        ("cuda", 3, ["cuda:0", "cuda:1", "cuda:2"]),
        ("cuda:0", 1, ["cuda:0"]),
        ("cuda:2", 3, ["cuda:2"]),
        ("cuda:01", 3, ["cuda:1"]),
        # several
        ("cuda:1,cuda:0", 2, ["cuda:1", "cuda:0"]),
        ("cuda:0,cuda:0", 1, ["cuda:0", "cuda:0"]),
        ("cuda:0,cpu:2", 1, ["cuda:0", "cpu", "cpu"]),
        ("cpu,cpu", 0, CPU2),
        ("cpu:2,cpu", 0, CPU3),
        ("cpu,2", 0, CPU3),
        ("auto,cpu", 0, CPU2),
        (["cpu:2", "cpu"], 0, CPU3),
        (("cuda:1", "cpu"), 2, ["cuda:1", "cpu"]),
        # blanks and case
        (" CPU:2 ", 0, CPU2),
        ("Cuda:0 ,\tcpu\n", 1, ["cuda:0", "cpu"]),
        ("AUTO", 0, CPU),
        ([" cpu "], 0, CPU),
    ],
)
def test_words_mean(devices: str | int | Sequence[str], cuda: int, expected: list[str]) -> None:
    assert parse_devices(devices, cuda=cuda) == expected


@pytest.mark.parametrize(
    ("cuda", "cores", "threads", "at_most", "expected"),
    [
        (0, 1, 1, 8, 1),
        (0, 6, 1, 8, 6),
        (0, 64, 1, 8, 8),
        (0, 64, 1, 100, 64),
        (0, 6, 2, 8, 3),
        (0, 7, 2, 8, 3),
        (0, 2, 4, 8, 1),
        (0, 8, 1, 1, 1),
        (1, 64, 1, 8, 1),
        (4, 2, 8, 8, 4),
        (16, 2, 1, 8, 8),
    ],
)
def test_auto_takes_cuda_or_else_cores(cuda: int, cores: int, threads: int, at_most: int, expected: int) -> None:
    names = parse_devices("auto", cuda=cuda, cores=cores, threads=threads, at_most=at_most)
    assert names == ([f"cuda:{index}" for index in range(expected)] if cuda else ["cpu"] * expected)


@pytest.mark.parametrize("count", range(1, 10))
def test_at_most_limits_auto_only(count: int) -> None:
    assert len(parse_devices(count, at_most=1)) == len(parse_devices(f"cpu:{count}", at_most=1)) == count


@pytest.mark.parametrize(
    ("devices", "cuda", "asked", "seen"),
    [
        ("cuda", 0, "'cuda' asks for cuda:0", "torch sees none on this machine"),
        ("cuda:0", 0, "asks for cuda:0", "torch sees none"),
        ("cuda:1", 1, "asks for cuda:1", "torch sees only cuda:0;"),
        ("cuda:4", 4, "asks for cuda:4", "torch sees only cuda:0 to cuda:3"),
        (2, 1, "'2' asks for cuda:1", "torch sees only cuda:0;"),
        ("cuda:0,cuda:7", 2, "'cuda:7' asks for cuda:7", "cuda:0 to cuda:1"),
        ("cpu,cuda:0", 0, "'cuda:0' asks for", "none"),
        ("cuda:999999", 1, "cuda:999999", "only cuda:0"),
    ],
)
def test_devices_that_are_not_there(devices: str | int, cuda: int, asked: str, seen: str) -> None:
    with pytest.raises(DeviceUnavailable) as caught:
        parse_devices(devices, cuda=cuda)
    assert asked in str(caught.value)
    assert seen in str(caught.value)
    assert "use cpu:2" in str(caught.value)


@pytest.mark.parametrize(
    ("devices", "text"),
    [
        ("gpu", "did you mean cuda?"),
        ("GPU:1", "did you mean cuda:1?"),
        ("gpus", "did you mean cuda?"),
        ("cores", "did you mean cpu?"),
        ("cpus:3", "did you mean cpu:3?"),
        ("cpus:0", "did you mean cpu?"),
        ("cdua:0", "did you mean cuda:0?"),
        ("atuo", "did you mean auto?"),
        ("auto:2", "did you mean auto?"),
        ("cuda:x", "did you mean cuda?"),
        ("cuda:", "did you mean cuda?"),
        ("cuda:-1", "did you mean cuda?"),
        ("tpu-v4", "'tpu-v4' in 'tpu-v4' is not known; expected auto, a number"),
        ("xyz", "'xyz' in 'xyz' is not known; expected"),
        ("cpu:2:3", "is not known"),
        ("cpu : 2", "is not known"),
        ("1.5", "is not known"),
        ("-1", "'-1' in '-1' is not known; expected auto, a number of workers"),
        ("٢", "is not known"),
        ("9999999", "(--devices): 9999999 workers were asked for; one host takes at most 1024"),
        ("cpu:99999999", "99999999 workers were asked for"),
        ("cuda:9999999999999999999", "is not known"),
        ("", "'' in '' is not known"),
        (" ", "is not known"),
        ("2,", "'' in '2,' is not known"),
        (",", "is not known"),
        ("cpu,,cpu", "is not known"),
        ("0", "'0' asks for no worker; expected at least 1. The first CUDA device is cuda:0"),
        ("cpu,0", "'0' asks for no worker"),
        ("cpu:0", "use cpu for one, cpu:2 for two"),
        ("cpu:000", "use cpu for one"),
        (0, "0 is no number of workers; expected 1 to 1024"),
        (-3, "-3 is no number of workers"),
        (1025, "1025 is no number of workers"),
        pytest.param(10**5000, "a number of 16610 bits is no number of workers", id="huge"),
        ("1025", "1025 workers were asked for; one host takes at most 1024"),
        ("cpu:999999", "999999 workers"),
        ("cpu:1024,cpu", "1025 workers"),
        ([], "the list is empty"),
        ((), "the list is empty"),
        ([0, 1], "a list holds names, such as ['cuda:0', 'cuda:1'] or ['cpu:2']; got 0 in it"),
        (["cpu", None], "got None in it"),
        (["cpu,cpu"], "is not known"),
        ([["cpu"]], "got ['cpu'] in it"),
        (b"cpu", "got 99 in it"),
        (True, "must be text, a whole number or a list of names; got True"),
        (2.0, "got 2.0"),
        (None, "got None"),
        ({"cpu"}, "got {'cpu'}"),
    ],
)
def test_words_that_mean_nothing(devices: object, text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_devices(devices, cuda=0)  # type: ignore[arg-type]
    assert text in str(caught.value)
    assert str(caught.value).startswith("devices")
    assert not isinstance(caught.value, DeviceUnavailable)


def test_words_are_known_without_the_machine() -> None:
    """So a slip is told before anything is started; whether the device is there is seen later."""
    assert device_words("CUDA:7 , cpu:2") == ["cuda:7", "cpu:2"]
    assert device_words(4) == ["4"]
    with pytest.raises(ConfigurationError, match="did you mean cuda"):
        device_words("gpu")
