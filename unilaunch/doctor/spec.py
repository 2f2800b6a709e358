"""The options of `unilaunch doctor`."""

from pathlib import Path

from pydantic import Field

from unilaunch.launch_spec import LaunchSpec


class DoctorSpec(LaunchSpec):
    """The hosts, mpirun, and what to do beside the check."""

    measure: bool = Field(
        default=False, description="measure the speed of each host and of the network between them, and name slow ones"
    )
    healthy: Path | None = Field(
        default=None, description="write a hostfile of the hosts with which nothing is wrong; implies --measure"
    )
