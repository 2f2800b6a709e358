"""What an orchestrator says of the nodes to the one `launch` that it starts on each: how many, and which this one is.

Each reader returns the fields of `LaunchSpec` that the environment sets, as text; what the user gives wins over them.
"""

from collections.abc import Callable, Mapping

from unilaunch.launchers import pet, slurm

_INDEX = "JOB_COMPLETION_INDEX"  # of an indexed Job of Kubernetes; how many pods it has no variable says
_SKYPILOT = {"nnodes": "SKYPILOT_NUM_NODES", "node_rank": "SKYPILOT_NODE_RANK"}
_SKYPILOT_ADDRESSES = "SKYPILOT_NODE_IPS"  # one in each line, that of node 0 first
_PET = {
    "nnodes": pet.NODES, "node_rank": pet.NODE, "nproc_per_node": pet.PER_NODE, "master_addr": pet.ADDRESS,
    "master_port": pet.PORT,
}  # fmt: skip
_PORTS = 10_000  # number of ports, of which each job of Slurm takes one; and the first of them
_SLURM = {"nnodes": slurm.STEP_NODES, "node_rank": "SLURM_NODEID"}


def nodes_of(environ: Mapping[str, str], *, is_number_given: bool) -> dict[str, str]:
    """Return the fields that the environment sets; none where it names one node.

    Args:
        environ: The process's environment.
        is_number_given: Whether the user says how many nodes there are.
    """
    readers: list[Callable[[Mapping[str, str]], dict[str, str]]] = [_read_pet, _read_skypilot, _read_slurm]
    for read in readers:
        if (values := read(environ)) and values.get("nnodes") not in {None, "1"}:
            return values
    return {"node_rank": environ[_INDEX]} if is_number_given and environ.get(_INDEX) else {}


def _read(environ: Mapping[str, str], names: Mapping[str, str]) -> dict[str, str]:
    return {field: environ[name] for field, name in names.items() if environ.get(name)}


def _read_pet(environ: Mapping[str, str]) -> dict[str, str]:
    """Read torchrun's variables, as in a pod of Kubeflow Trainer; a rank that torchrun has started has them too."""
    return {} if "TORCHELASTIC_RUN_ID" in environ else _read(environ, _PET)


def _read_skypilot(environ: Mapping[str, str]) -> dict[str, str]:
    first = environ.get(_SKYPILOT_ADDRESSES, "").split()[:1]
    return _read(environ, _SKYPILOT) | ({"master_addr": first[0]} if first else {})


def _read_slurm(environ: Mapping[str, str]) -> dict[str, str]:
    """Read the variables of a step of srun that has one task on each node; a batch script runs on one node alone."""
    if environ.get(slurm.SIZES[0]) != environ.get(slurm.STEP_NODES) or not slurm.is_step(environ):
        return {}
    # A batch script starts the step on node 0 itself, whose name may have no address.
    names = slurm.first_host(environ.get(slurm.NODES[0], "")), environ.get(slurm.LAUNCH_NODE)
    where = {"master_addr": ",".join(filter(None, names))}
    if (job := environ.get(slurm.JOB, "")).isdecimal():
        where["master_port"] = str(_PORTS + int(job) % _PORTS)  # two jobs may share a node
    return _read(environ, _SLURM) | where
