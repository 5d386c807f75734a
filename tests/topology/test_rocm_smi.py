"""What rocm-smi prints."""

from __future__ import annotations

import contextlib
import random

import pytest
from tests.topology.samples import ROCM
from tests.topology.test_nvidia_smi import joined

from samegrad.errors import TopologyError
from samegrad.topology import Topology
from samegrad.topology.link_types import Rates


def test_two_hives() -> None:
    topology = Topology.from_rocm_smi(ROCM)
    assert joined(topology) == {("gpu0", "gpu1"): 1, ("gpu2", "gpu3"): 1}
    assert topology.hosts == ("cpu0", "cpu1")
    way = [topology.link_name(number) for number in topology.route("gpu0", "gpu3")]
    assert way == ["gpu0 -> root0", "root0 -> root1", "root1 -> gpu3"]


def test_without_the_parts_on_hops_and_nodes() -> None:
    start, end = ROCM.index("====== Link Type"), ROCM.index("====== Numa")
    topology = Topology.from_rocm_smi(ROCM[start:end])
    assert joined(topology) == joined(Topology.from_rocm_smi(ROCM))
    assert topology.hosts == ("cpu0",)
    one = "=== Link Type between two GPUs ===\n       GPU0   \nGPU0   0      \n=== End of ROCm SMI Log ===\n"
    assert Topology.from_rocm_smi(one).devices == ("gpu0",)


def test_xgmi_of_several_hops_is_no_link() -> None:
    topology = Topology.from_rocm_smi(
        ROCM.replace("1            0 ", "2            0 ").replace("0            1 ", "0            2 ")
    )
    assert ("gpu0", "gpu1") not in joined(topology)


def test_rates_can_be_given() -> None:
    topology = Topology.from_rocm_smi(ROCM, Rates(xgmi=5e9))
    assert topology.links[0].bandwidth == 5e9


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: there is no part 'Link Type between two GPUs'"),
        (ROCM[: ROCM.index("GPU3   PCIE")], "the matrix ends here, without row GPU3: it is cut"),
        (ROCM[: ROCM.index("GPU3   PCIE") + 20], "row GPU3, column GPU1: unexpected: the end of the line"),
        (ROCM[: ROCM.index("GPU0   0            XGMI")], "line 9: the part 'Link Type between two GPUs' has no matrix"),
        (ROCM.replace("GPU1   XGMI", "GPU1   PCIE"), "row GPU0, column GPU1 says XGMI, but row GPU1 says PCIE"),
        (
            ROCM.replace("XGMI         0  ", "XGMI         PCIE"),
            "line 12: Link Type between two GPUs: row GPU1, column",
        ),
        (ROCM[: ROCM.index("GPU[0]") + 9], "the part on NUMA nodes ends without GPU0, GPU1, GPU2, GPU3: it is cut"),
        (ROCM[: ROCM.index("GPU[2]") + 9], "line 19: the part on NUMA nodes ends without GPU2, GPU3: it is cut"),
        (ROCM.replace("XGMI", "ETHER"), "row GPU0, column GPU1: unexpected: 'ETHER'"),
    ],
)
def test_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(TopologyError) as info:
        Topology.from_rocm_smi(text)
    assert message in str(info.value)


@pytest.mark.parametrize("seed", range(100))
def test_spoilt_texts_raise_nothing_else(seed: int) -> None:
    rng = random.Random(seed)
    text = list(ROCM[: rng.randrange(len(ROCM))])
    for _ in range(rng.randint(0, 20) if text else 0):
        text[rng.randrange(len(text))] = rng.choice(["", " ", "\n", "=", "===", "GPU1", "0", "XGMI", "\x00", "\udc80"])
    with contextlib.suppress(TopologyError):
        assert Topology.from_rocm_smi("".join(text)).devices
