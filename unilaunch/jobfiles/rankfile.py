"""A rankfile of Open MPI: which rank goes where, rank by rank."""

from collections import Counter
from collections.abc import Iterator

from unilaunch.errors import SpecError
from unilaunch.job.plan import Plan
from unilaunch.jobfiles.job_file import JobFile, spec_json
from unilaunch.overriding import override
from unilaunch.record import replace
from unilaunch.spec.run_spec import Spec


class Rankfile(JobFile):
    """Each rank is bound to cores of its own: as many as it has threads, or one."""

    @override
    def lines(self, plan: Plan, options: Spec) -> Iterator[str]:
        allocated = plan.request.several and not plan.request.hosts  # an allocation, whose hosts mpirun reads
        if allocated or any(row.host == "?" for row in plan.rows):
            raise SpecError("--emit rankfile: only mpirun can tell where the ranks go; give every host its slots")
        if named := [row.host for row in plan.rows if ":" in row.host]:
            raise SpecError(f"--emit rankfile: {named[0]}: mpirun takes no IPv6 address in -H: name it in /etc/hosts")
        ranks = Counter(row.host for row in plan.rows)
        hosts = ",".join(replace(host, slots=ranks[host.name]).entry for host in plan.request.hosts if ranks[host.name])
        start = f"# mpirun -n {len(plan.rows)}{hosts and f' -H {hosts}'}"  # Open MPI 5 takes no hosts from the file
        yield "# Written by unilaunch launch --emit rankfile: for Open MPI 4, for Open MPI 5, and its spec:"
        yield f"{start} --rankfile FILE"
        yield f"{start} --map-by rankfile:file=FILE"
        yield f"# {spec_json(plan)}"
        cores, used = plan.task.spec.threads or 1, Counter[str]()
        for row in plan.rows:
            first = used[row.host]
            used[row.host] += cores
            yield f"rank {row.rank}={row.host} slot={first}" + (f"-{first + cores - 1}" if cores > 1 else "")
