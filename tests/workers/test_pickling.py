"""What functions and values keep on their way to another process and back."""

from __future__ import annotations

import linecache
import socket
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from samegrad.workers import pickling


def run_as_main(text: str, file_name: str = "<no file>") -> dict[str, Any]:
    """The variables after running `text` as a script or notebook would."""
    variables: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(text, file_name, "exec"), variables)
    return variables


def test_code_keeps_its_file_and_line() -> None:
    main = run_as_main("\n\ndef f():\n    return (lambda: 1 / 0)()\n", "/some/script.py")
    loaded = pickling.loads_function(pickling.dumps_function(main["f"]))
    with pytest.raises(ZeroDivisionError) as caught:
        loaded()
    frames = traceback.extract_tb(caught.value.__traceback__)[1:]
    assert [(frame.filename, frame.lineno) for frame in frames] == [("/some/script.py", 4)] * 2


def test_code_that_is_in_no_file_brings_its_text_along(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "def f():\n    raise KeyError('here')\n"
    monkeypatch.setattr(linecache, "cache", {"<cell 3>": (len(text), None, text.splitlines(True), "<cell 3>")})
    pickled = pickling.dumps_function(run_as_main(text, "<cell 3>")["f"])
    monkeypatch.setattr(linecache, "cache", {})  # that of another process
    with pytest.raises(KeyError) as caught:
        pickling.loads_function(pickled)()
    assert "raise KeyError('here')" in "".join(traceback.format_exception(caught.value))


def test_a_string_that_looks_like_a_placeholder_stays_what_it_is() -> None:
    main = run_as_main("def f():\n    return '<dynamic-code>'\n", "/some/script.py")
    loaded = pickling.loads_function(pickling.dumps_function(main["f"]))
    assert loaded() == "<dynamic-code>"


CLASSES = """
import enum
from dataclasses import dataclass
factor = 1
class Plain:
    seen = []
    def value(self):
        return factor
@dataclass
class Data:
    n: int = 3
    def value(self):
        return self.n * factor
class Colour(enum.Enum):
    RED = 1
    def value_of(self):
        return factor
class Sub(Plain):
    pass
"""


def test_an_instance_that_comes_back_is_of_the_class_as_it_is_now() -> None:
    main = run_as_main(CLASSES)
    sent = [main["Plain"](), main["Data"](), main["Colour"].RED, main["Sub"]()]
    before = {name: dict(vars(main[name])) for name in ("Plain", "Data", "Colour", "Sub")}
    pickled = pickling.dumps(sent)
    main["Plain"].seen.append("since")
    main["factor"] = 10
    back = pickling.loads(pickled)
    assert [type(value) for value in back] == [main["Plain"], main["Data"], main["Colour"], main["Sub"]]
    assert back[2] is main["Colour"].RED
    assert [back[0].value(), back[1].value(), back[2].value_of(), back[3].value()] == [10, 30, 10, 10]
    assert main["Plain"].seen == ["since"]
    for name, variables in before.items():
        assert {key: value for key, value in vars(main[name]).items() if key in variables} == variables


def test_what_cloudpickle_alone_would_do_to_the_class() -> None:
    """If this fails, cloudpickle has changed, and `_Unpickler` may go."""
    import cloudpickle

    main = run_as_main(CLASSES)
    method = main["Plain"].value
    cloudpickle.loads(pickling.dumps(main["Plain"]()))
    assert main["Plain"].value is not method


def generator() -> Iterator[int]:
    yield 1


class Holder:
    def __init__(self, content: object) -> None:
        self.content = content

    def run(self) -> object:
        return self.content


@pytest.mark.parametrize("make", [threading.Lock, generator, socket.socket])
def test_the_variable_that_cannot_be_pickled_is_named(make: Callable[[], Any]) -> None:
    culprit, fine = make(), [1]

    def closure() -> object:
        return culprit, fine

    def default(first: object = fine, second: object = culprit) -> object:
        return first, second

    main = run_as_main("def f():\n    return outside, inside\n")
    main.update(outside=culprit, inside=fine)
    for function, name in ((closure, "culprit"), (default, "second"), (main["f"], "outside")):
        with pytest.raises(TypeError):
            pickling.dumps(function)
        assert pickling.names_of_unpicklable(function) == [name]
    assert pickling.names_of_unpicklable(Holder(culprit).run) == ["self"]
    if hasattr(culprit, "close"):
        culprit.close()


def test_names_are_looked_for_in_functions_only() -> None:
    def empty_cell() -> object:
        return later

    assert pickling.names_of_unpicklable(empty_cell) == []
    later = 1
    assert pickling.names_of_unpicklable(empty_cell) == []
    assert pickling.names_of_unpicklable(print) == []
    with socket.socket() as connection:
        assert pickling.names_of_unpicklable(connection) == []
