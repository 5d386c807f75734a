from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.warm_start import WarmStarts

from samegrad.workers import launcher


@pytest.fixture(scope="session", autouse=True)
def warm_starts() -> Iterator[None]:
    """Workers that tests launch are forked from a process that has imported torch already."""
    starts = WarmStarts()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launcher, "subprocess", starts.module())
        yield
    starts.close()
