"""Who may call launch, from where, with what; and what workers take over from the caller."""

from __future__ import annotations

import io
import json
import linecache
import os
import socket
import sys
import threading
import types
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.workers.processes import PATIENCE_S, Scripts, own_children

from samegrad import launch
from samegrad.errors import ConfigurationError, DeviceUnavailable, GroupError, WorkerFailed
from samegrad.workers import context, launcher
from samegrad.workers.context import WorkerContext, enter

pytestmark = pytest.mark.dist

SCRIPT = """\
import samegrad
from samegrad.workers import context

factor = 3
class Thing:
    def __init__(self, n):
        self.n = n
    def times(self):
        return self.n * factor

def work():
    return Thing(10 * context().rank + len(context().devices))

got = samegrad.launch(work, devices="cpu:2")
factor = 5
print("got", type(got) is Thing, got.n, got.times())
shift = 1
print("and", samegrad.launch(lambda: [shift] * 2, devices="cpu"))
"""


@pytest.mark.parametrize("how", ["file", "-c", "-m", "stdin", "-i"])
def test_a_script_without_a_guard(how: str, scripts: Scripts) -> None:
    run = scripts.run(SCRIPT, how)
    assert run.returncode == 0, run.stderr
    lines = [line.removeprefix(">>> ") for line in run.stdout.splitlines()]
    assert lines == ["got True 2 10", "and [1, 1]"]


def test_the_arguments_of_the_caller(quick: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also in what workers import before they are forked, and whatever they hold."""
    (tmp_path / "reads_arguments.py").write_text("import sys\nseen = list(sys.argv)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for arguments in (["script.py", "--lr", "0.1", "", "two words", "\udcff é"], []):
        monkeypatch.setattr(sys, "argv", arguments)

        def work() -> Any:
            import reads_arguments  # type: ignore[import-not-found]

            return sys.argv, reads_arguments.seen

        assert launch(work, devices="cpu:2", preload=["reads_arguments"]) == (arguments, arguments)


@pytest.mark.parametrize("how", ["file", "-c", "-m", "stdin"])
def test_a_script_that_reads_its_arguments_in_the_function(how: str, scripts: Scripts) -> None:
    text = (
        "import sys, samegrad\nsys.argv += ['given']\n"
        "def work():\n    return sys.argv\n"
        "print(samegrad.launch(work, devices='cpu') == sys.argv, sys.argv[1])\n"
    )
    assert scripts.run(text, how).stdout == "True given\n"


def test_a_module_that_the_caller_finds(quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_module.py").write_text("def work():\n    return __name__, __file__\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import my_module  # type: ignore[import-not-found]

    assert launch(my_module.work, devices="cpu") == ("my_module", str(tmp_path / "my_module.py"))


@pytest.mark.parametrize(("given", "interface"), [(None, "lo"), ("eth7", "eth7")])
def test_workers_keep_to_the_interface_of_the_host_unless_another_is_set(
    given: str | None, interface: str, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"]
    for name in names:
        monkeypatch.setenv(name, given or "")
        if given is None:
            monkeypatch.delenv(name)
    assert launch(lambda: [os.environ[name] for name in names], devices="cpu:1") == [interface] * 2


def test_a_module_that_only_the_caller_has(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("made_up_module")
    exec("def work():\n    return 1\n", vars(module))
    monkeypatch.setitem(sys.modules, "made_up_module", module)
    with pytest.raises(ConfigurationError, match=r"could not load the function: .*'made_up_module'"):
        launch(module.work, devices="cpu")


def test_a_module_that_launches_while_workers_import_it(scripts: Scripts) -> None:
    text = "import samegrad\ndef work(): ...\nsamegrad.launch(work, devices='cpu')\n"
    (scripts.folder / "careless.py").write_text(text)
    run = scripts.run("import careless", "-c")
    assert "cannot be nested" in run.stderr
    assert "put the call under `if __name__ == '__main__':`" in run.stderr


CELL = """\
class Result:
    def __init__(self, text):
        self.text = text
def work():
    print("from the worker")
    print("and its errors", file=sys.stderr)
    return Result("fine")
def fail():
    print("printed before it failed")
    raise ValueError("here")
"""


def test_a_cell_of_a_notebook(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its functions are those of `__main__` and in no file, and what is printed goes to an object, not to a file."""
    cell: dict[str, Any] = {"__name__": "__main__", "sys": sys}
    exec(compile(CELL, "/no/such/cell.py", "exec"), cell)
    linecache.cache["/no/such/cell.py"] = (len(CELL), None, CELL.splitlines(True), "/no/such/cell.py")
    out, err = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    result = launch(cell["work"], devices="cpu:3")
    assert type(result) is cell["Result"]
    assert out.getvalue() == "from the worker\n" * 3
    assert err.getvalue() == "and its errors\n" * 3
    with pytest.raises(WorkerFailed) as caught:
        launch(cell["fail"], devices="cpu")
    assert 'File "/no/such/cell.py", line 10, in fail\n    raise ValueError("here")' in str(caught.value)
    assert out.getvalue().endswith("printed before it failed\n")
    monkeypatch.setattr(sys, "stdout", None)  # as under pythonw
    assert launch(cell["work"], devices="cpu").text == "fine"


def in_threads(calls: list[Callable[[], Any]]) -> list[Any]:
    results: dict[int, Any] = {}
    threads = [
        threading.Thread(target=lambda place=place, call=call: results.update({place: call()}))
        for place, call in enumerate(calls)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    return [results[place] for place in range(len(calls))]


def test_launches_from_several_threads_at_a_time(quick: None) -> None:
    def call(number: int) -> Callable[[], int]:
        return lambda: launch(lambda: number, devices="cpu:2")

    assert in_threads([call(number) for number in range(4)]) == [0, 1, 2, 3]


def test_launches_from_two_processes_at_a_time(scripts: Scripts) -> None:
    text = "import samegrad\nprint(samegrad.launch(lambda: 5, devices='cpu:2'))"
    with scripts.start(text) as a, scripts.start(text) as b:
        assert a.communicate(timeout=PATIENCE_S) == b.communicate(timeout=PATIENCE_S) == ("5\n", "")


def test_a_launch_after_a_failed_one(quick: None) -> None:
    with pytest.raises(WorkerFailed):
        launch(lambda: 1 // 0, devices="cpu:2")
    assert launch(lambda: 1, devices="cpu:2") == 1


TAKEN_OVER = """\
import json, os, sys
import samegrad
sys.path.append("/appended/while/running")
os.chdir("/")
os.environ["SET_WHILE_RUNNING"] = "1"
def work():
    import json, os, sys
    return [sys.path, sys.warnoptions, sys.flags.dev_mode, sys.flags.optimize, os.getcwd(), sys.executable,
            os.environ["SET_WHILE_RUNNING"]]
expected = json.loads(json.dumps(work()))
found = samegrad.launch(work, devices="cpu")
print(json.dumps([expected, found]))
"""


@pytest.mark.parametrize("how", ["file", "-c"])
def test_workers_take_over_path_folder_environment_and_flags(how: str, scripts: Scripts) -> None:
    flags = ["-W", "error::UserWarning", "-X", "dev", "-O"]
    run = scripts.run(TAKEN_OVER, how, flags)
    assert (run.returncode, run.stderr) == (0, "")
    expected, found = json.loads(run.stdout)
    assert found == expected
    assert found[0][-1] == "/appended/while/running"
    assert found[1:5] == [["default", "error::UserWarning"], True, 1, "/"]


# What is refused


def in_a_lock() -> Callable[[], object]:
    lock = threading.Lock()
    return lambda: lock


def in_a_socket() -> Callable[[], object]:
    connection = socket.socket()
    connection.close()
    return lambda: connection


def in_a_generator() -> Callable[[], object]:
    numbers = (number for number in range(3))
    return lambda: numbers


@pytest.mark.parametrize(
    ("make", "name"), [(in_a_lock, "lock"), (in_a_socket, "connection"), (in_a_generator, "numbers")]
)
def test_a_function_that_cannot_travel(quick: None, make: Callable[[], Callable[[], object]], name: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be sent to the workers: cannot pickle") as caught:
        launch(make(), devices="cpu")
    assert f"(it uses {name})" in str(caught.value)
    assert "inside the function instead" in str(caught.value)
    assert own_children() == []


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"devices": "gpu"}, "did you mean cuda"),
        ({"devices": []}, "the list is empty"),
        ({"devices": None}, "must be text"),
        ({"threads": 0}, "threads must be"),
        ({"timeout_s": -1}, "timeout_s must be"),
        ({"start_timeout_s": "1"}, "start_timeout_s must be"),
        ({"at_most": 0}, "at_most must be"),
        ({"preload": [1]}, "preload must be"),
    ],
)
def test_arguments_are_refused_before_anything_is_started(
    arguments: dict[str, Any], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "_Server", None)
    with pytest.raises(ConfigurationError, match=text):
        launch(print, **arguments)
    with pytest.raises(ConfigurationError, match="a function without arguments is needed; got 5"):
        launch(5)  # type: ignore[arg-type]


def test_launch_is_not_for_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[WorkerContext.__module__], "_context", None)
    enter(WorkerContext(0, ("cpu",), -1, 1, 1.0, print))
    with pytest.raises(ConfigurationError, match="cannot be nested"):
        launch(print)


def test_a_device_that_is_not_there_and_a_module_that_is_not_there(quick: None) -> None:
    with pytest.raises(ConfigurationError, match="2048 workers"):
        launch(print, devices="cpu:1024,cpu:1024")
    with pytest.raises(ConfigurationError, match="the workers cannot import 'no_such_module': ModuleNotFoundError"):
        launch(partial(print, bytes(5_000_000)), devices="cpu", preload=["no_such_module"])


def test_cuda_devices_are_counted_by_another_process_than_the_one_that_forks(quick: None) -> None:
    def work() -> tuple[tuple[str, ...], bool]:
        import torch

        worker = context()
        assert worker is not None
        return worker.devices, torch.cuda.counted  # type: ignore[attr-defined]

    assert launch(work) == (("cuda:0", "cuda:1"), False)
    with pytest.raises(DeviceUnavailable, match="asks for cuda:5, but torch sees only cuda:0 to cuda:1"):
        launch(work, devices="cuda:5")


def test_an_interpreter_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(ConfigurationError, match=r"the interpreter '' \(sys\.executable\)"):
        launch(print, devices="cpu")
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(GroupError, match="/no/such/python could not be started"):
        launch(print, devices="cpu")
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with pytest.raises(ConfigurationError, match="not a plain Python"):
        launch(print, devices="cpu")


WITHOUT_LINUX = """\
import os, signal, sys
import psutil, torch
sys.platform = "darwin"
for name in ("fork", "memfd_create", "sched_getaffinity", "posix_fallocate", "register_at_fork"):
    delattr(os, name)
for name in ("SIGKILL", "SIGCHLD", "SIGHUP", "pthread_sigmask", "set_wakeup_fd"):
    delattr(signal, name)
import samegrad, samegrad.workers
for name in samegrad.__all__:
    getattr(samegrad, name)
try:
    samegrad.launch(print, devices=2)
except samegrad.errors.ConfigurationError as error:
    print(error)
"""


def test_another_system_than_linux(torch_scripts: Scripts) -> None:
    run = torch_scripts.run(WITHOUT_LINUX)
    assert run.stderr == ""
    assert "starting workers needs Linux; this is darwin" in run.stdout


def test_a_start_that_hangs(quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "never_ready.py").write_text("import threading\nthreading.Event().wait()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(GroupError, match=r"no worker could be started within 0\.3 s"):
        launch(print, devices="cpu", preload=["never_ready"], start_timeout_s=0.3)


@pytest.mark.parametrize(
    ("text", "code"), [("import os; os._exit(5)", 5), ("import sys; sys.exit(6)", 1), ("raise KeyboardInterrupt", 1)]
)
def test_a_start_that_ends(
    quick: None,
    text: str,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / f"ends_{code}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(GroupError, match=f"ended by itself with exit code {code} before all of them had answered"):
        launch(partial(print, bytes(5_000_000)), devices="cpu", preload=[f"ends_{code}"])


def test_too_few_files_for_so_many_workers(scripts: Scripts) -> None:
    text = (
        "import resource, samegrad, psutil\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (30, 30))\n"
        "try:\n    samegrad.launch(print, devices='cpu:100')\n"
        "except samegrad.errors.GroupError as error:\n    print(error)\n"
        "print(psutil.Process().children(recursive=True))\n"
    )
    run = scripts.run(text)
    assert "of 100 could not be started: [Errno 24] Too many open files. Use fewer devices" in run.stdout, run.stderr
    assert run.stdout.endswith("[]\n")


def test_what_an_import_prints_is_printed_once(quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "chatty.py").write_text("print('imported')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    launch(lambda: None, devices="cpu:3", preload=["chatty"])
    assert out.getvalue() == "imported\n"
