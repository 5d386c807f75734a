"""How long a schedule takes on a topology, before anything is run. No torch.

    simulate(schedule, topology, nbytes=160e6).seconds

`messages` says what ranks send and what each message waits for, `wiring` what it passes, `steps` makes tasks of both,
`engine` runs them, where `sharing` says how fast each is; `placed` puts these together for one schedule, and
`simulation` is the record of what came of it. `survey` does this for all algorithms, `plot` draws it, `trace` makes a
timeline. `reference` computes the same slowly and plainly, for tests. `shared_host` is for ranks that read each other's
memory. `nccl_tests` reads what others have measured.
"""

from __future__ import annotations

from samegrad.simulator.placed import simulate
from samegrad.simulator.simulation import Simulation, Step
from samegrad.simulator.survey import Candidate, Survey, simulate_all

__all__ = ["Candidate", "Simulation", "Step", "Survey", "simulate", "simulate_all"]
