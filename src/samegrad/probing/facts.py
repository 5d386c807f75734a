"""What the system says of the machine, without measuring."""

from __future__ import annotations

import contextlib
import platform
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil

from samegrad.machine import available_memory, processor_name, usable_cores

__all__ = ["facts"]

Fact = str | int | float
_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def facts() -> dict[str, Fact]:
    """Name -> fact; bytes and Hz where numbers have a unit. What the system does not tell is left out."""
    found: dict[str, Fact] = {
        "host": socket.gethostname(),
        "processor": processor_name(),
        "cores usable": usable_cores(),
        "cores": psutil.cpu_count(logical=False) or 0,
        "hardware threads": psutil.cpu_count() or 0,
        "memory": int(psutil.virtual_memory().total),
        "memory available": available_memory(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
    }
    with contextlib.suppress(OSError, NotImplementedError):
        if frequency := psutil.cpu_freq():
            found["frequency"] = frequency.current * 1e6
    with contextlib.suppress(OSError):
        found["large pages"] = _PAGES.read_text(encoding="ascii").split("[")[1].split("]")[0]
    with contextlib.suppress(OSError):
        flags = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags"))
        found["virtual machine"] = "yes" if " hypervisor" in flags else "no"
        known = ("avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16")
        found["instructions"] = (
            ", ".join(flag for flag in known if f" {flag} " in f"{flags} ") or "none of the wide ones"
        )
    for number, text in enumerate(_gpus()):
        found[f"gpu{number}"] = text
    return found


def _gpus() -> Iterator[str]:
    """Name, memory and driver of each GPU, by NVIDIA's management library; nothing where it is not installed."""
    try:
        import pynvml
    except ModuleNotFoundError:
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return  # no driver
    try:
        driver = pynvml.nvmlSystemGetDriverVersion()
        for number in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(number)
            total = pynvml.nvmlDeviceGetMemoryInfo(handle).total
            yield f"{pynvml.nvmlDeviceGetName(handle)}, {total / 1e9:.0f} GB, driver {driver}"
    except pynvml.NVMLError:
        return
    finally:
        pynvml.nvmlShutdown()
