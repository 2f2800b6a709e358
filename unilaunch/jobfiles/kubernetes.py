"""Common parts of the manifests for Kubernetes: the options, the pods, and the restart of a job."""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

import yaml
from pydantic import Field

from unilaunch.errors import SpecError
from unilaunch.job.plan import Plan
from unilaunch.jobfiles.job_file import JobFile, spec_json
from unilaunch.launchers.mpirun import reference
from unilaunch.overriding import override
from unilaunch.record import Record, replace
from unilaunch.spec.launch_spec import LaunchSpec, written_as
from unilaunch.spec.run_spec import Spec
from unilaunch.spec.task import Machine, Task

#: What a pod asks for, by kind of device.
DEVICES = {"cuda": "nvidia.com/gpu", "npu": "huawei.com/Ascend910"}
IMAGE = "IMAGE"
#: The variable of the ranks from which `{job}` in the name of the output folder comes.
JOB_ID = "JOB_ID"
#: The user of the image of docker/Dockerfile, and where sshd and mpirun's ssh find their files there.
USER, SSH_FOLDER = 1000, "/home/mpiuser/.ssh"
SSHD = ("/usr/sbin/sshd", "-De", "-f", "/home/mpiuser/.sshd_config")
#: Seconds between the end of --grace and the moment at which Kubernetes kills the ranks.
_FAREWELL = 15
_LONGEST = 34  # letters of the target in the job's name, as of `Name`

Volume = Annotated[
    str, written_as(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?:/[^:]+", "written as CLAIM:/FOLDER, such as results:/output")
]
Image = Annotated[str, written_as(r"\S+", "an image's name, without spaces")]
# JobSet refuses a name whose pods' names, such as NAME-launcher-0-0-abcde or NAME-ranks-0-9999-abcde, exceed 63.
Name = Annotated[
    str,
    written_as(r"[a-z]([-a-z0-9]{0,42}[a-z0-9])?", "at most 44 lower-case letters, digits and -, a letter first"),
]
Namespace = Annotated[str, written_as(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", "lower-case letters, digits and -")]
Quantity = Annotated[str, written_as(r"[0-9]+(\.[0-9]+)?([KMGTPE]i|[kMGTPEm])?", "a size such as 8Gi or 500M")]


class PodFile(JobFile):
    """A job file whose ranks run in an image, and whose engine starts the job again."""

    restarts = True

    @override
    def machine(self, options: Any) -> Machine:
        return Machine.IMAGE


class PodSpec(Spec):
    """The job's name, and what a pod is made of."""

    name: Name | None = Field(default=None, description="the job's name; default: unilaunch- and the target's")
    namespace: Namespace | None = Field(default=None, description="the namespace; default: that of kubectl")
    image: Image = Field(default=IMAGE, description="the image; it has unilaunch in it (docker/Dockerfile)")
    cpus: int | None = Field(default=None, ge=1, description="processors of each pod; its ranks share them as threads")
    memory: Quantity | None = Field(default=None, description="memory of each pod: 16Gi")
    volume: tuple[Volume, ...] = Field(
        default=(), description="CLAIM:/FOLDER: a PersistentVolumeClaim, and where all pods have it; may be repeated"
    )
    patch: Path | None = Field(
        default=None,
        description="YAML file: what else each object has (metadata: a queue's label), and under pod each pod "
        "(nodeSelector, tolerations, imagePullSecrets)",
    )


class _Dumper(yaml.SafeDumper):
    """Quotes also the texts that Kubernetes, and not PyYAML, would read as a number or a truth value: 1e-3, 09, y."""


_OTHERS = re.compile(r"[-+]?[._]*\d|[yYnN]$")
_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _OTHERS, list("-+._0123456789yYnN"))


def share_cores(task: Task[LaunchSpec], options: PodSpec, ranks: int) -> Task[LaunchSpec]:
    """Return the task with as many threads as a rank has processors of its pod: it sees those of the whole host."""
    if options.cpus is None or task.spec.threads is not None:
        return task
    return replace(task, spec=task.spec.model_copy(update={"threads": max(1, options.cpus // ranks)}))


def refuse_variables(spec: LaunchSpec, own: Sequence[str] = (JOB_ID,)) -> None:
    """Raise an error for `-x NAME` without a value, and for a variable that the manifest itself sets.

    Args:
        spec: What the user wants.
        own: The variables that the manifest sets.
    """
    if bare := [text for text in spec.export if "=" not in text]:
        raise SpecError(f"-x {bare[0]}: a pod has none of this machine's variables: -x {bare[0]}=VALUE")
    given = {text.partition("=")[0] for text in spec.export} | set(spec.env)
    if taken := [name for name in own if name in given]:
        raise SpecError(f"-x {taken[0]}: the manifest gives each pod its own: leave it out")


def refuse_folder(spec: LaunchSpec) -> None:
    """Raise an error for `--cwd`: a folder of this machine is none of an image."""
    if spec.cwd:
        raise SpecError(f"--cwd {spec.cwd}: the ranks start in the image's folder: set its WORKDIR")


def resume_at_restart(
    task: Task[LaunchSpec], options: PodSpec, *, new: Sequence[str] = ("{date}",)
) -> Task[LaunchSpec]:
    """Return the task as it is when the engine starts the job again: a model goes on from its newest checkpoint.

    The first start finds no checkpoint, and begins at the beginning. Where a script keeps its own is not known.

    Args:
        task: What the user wants.
        options: What a pod is made of.
        new: Placeholders of the output folder that each start fills anew.

    Raises:
        SpecError: The folder of the checkpoints is not in a volume: it would end with its pod. Or it is in the output
            folder, and each start would have another one.
    """
    spec = task.spec
    if not spec.max_restarts or task.model is None:
        return task
    named = task.model.checkpoint_folder(task.options)
    option, kept = named or ("--output-dir", spec.output_dir)
    folder = PurePosixPath(kept)
    if not any(folder.is_relative_to(volume.partition(":")[2]) for volume in options.volume):
        raise SpecError(
            f"--max-restarts {spec.max_restarts}: a new pod would find no checkpoint: {option} {folder} is in no "
            f"--volume: add --volume CLAIM:/output {option} /output/{folder.name}"
        )
    if not named and (changing := [name for name in new if name in str(folder)]):
        raise SpecError(
            f"--max-restarts {spec.max_restarts}: --output-dir {folder}: {changing[0]} is another one at each start, "
            "which would find no checkpoint: leave it out"
        )
    return replace(task, options=task.model.again(task.options, fewer_ranks=False))


class Manifest(Record):
    """The manifest of one job: its objects have one name, and their pods have the same parts.

    Attributes:
        kind: As `--emit` calls it.
        plan: What to start.
        options: What a pod is made of.
    """

    kind: str
    plan: Plan
    options: PodSpec

    @property
    def name(self) -> str:
        """The job's name, as Kubernetes takes it: lower-case letters, digits and dashes.

        Of a long path it is the end, and a digest of the whole: scripts of one folder, and of one name, have their own.
        """
        if self.options.name:
            return self.options.name
        text = self.plan.task.target.name
        name = re.sub(r"[^a-z0-9]", "-", text.lower()).strip("-")
        if len(name) > _LONGEST:
            digest = sha256(text.encode(errors="surrogateescape")).hexdigest()[:6]
            name = f"{name[-(_LONGEST - 7) :].strip('-')}-{digest}"
        return f"unilaunch-{name or 'job'}"

    def metadata(self, **more: Any) -> dict[str, Any]:
        """Return the metadata of an object of the job."""
        place = {"namespace": self.options.namespace} if self.options.namespace else {}
        return {"name": self.name, **place, **more}

    def metadata_with_spec(self) -> dict[str, Any]:
        """Return the metadata of the object that a user looks at: it has the spec of the job."""
        return self.metadata(annotations={"unilaunch/spec": spec_json(self.plan)})

    def from_secret(self, name: str, key: str) -> dict[str, Any]:
        """Return a variable whose value is in the job's Secret, which has the job's name."""
        return {"name": name, "valueFrom": {"secretKeyRef": {"name": self.name, "key": key}}}

    def secrets(self) -> list[dict[str, Any]]:
        """Return the variables with the user's secret values, which come from the Secret."""
        return [self.from_secret(name, name) for name in self.plan.request.secret_names]

    def variables(self) -> list[dict[str, Any]]:
        """Return the variables of `-x NAME=VALUE`, and those with secret values."""
        hidden = self.plan.request.secret_names
        texts = [text.partition("=") for text in self.plan.request.options.export]
        plain = [{"name": name, "value": _unexpanded(value)} for name, equals, value in texts
                 if equals and name not in hidden]  # fmt: skip
        return [*plain, *self.secrets()]

    def pod(self, container: Mapping[str, Any], ranks: int) -> dict[str, Any]:
        """Return the spec of a pod.

        Args:
            container: What its container has, beside the image and what the options add.
            ranks: Ranks of the pod; 0 for one that only starts the others.
        """
        options, limits = self.options, dict[str, str | int]()
        kind = self.plan.rows[0].device.partition(":")[0]
        if ranks:
            limits |= {"cpu": str(options.cpus)} if options.cpus else {}
            limits |= {"memory": options.memory} if options.memory else {}
            limits |= {DEVICES[kind]: ranks} if kind in DEVICES else {}
        mounts, volumes = _volumes(options)
        if ranks:  # a container's own has 64 MB, too little for MPI's and a loader's shared memory
            mounts.append({"name": "shm", "mountPath": "/dev/shm"})  # noqa: S108
            volumes.append({"name": "shm", "emptyDir": {"medium": "Memory"}})
        whole = {"image": options.image, **container, **({"resources": {"limits": limits}} if limits else {})}
        return {
            "terminationGracePeriodSeconds": math.ceil(self.plan.task.spec.grace) + _FAREWELL,
            "containers": [whole | ({"volumeMounts": mounts} if mounts else {})],
            **({"volumes": volumes} if volumes else {}),
        }

    def lines(self, documents: Sequence[Mapping[str, Any]], own_keys: Mapping[str, str] = {}) -> Iterator[str]:
        """Give the lines of the file.

        Args:
            documents: The objects.
            own_keys: What the Secret must hold beside the secrets among the variables: each key, and a shell's word for
                its value.
        """
        options = self.options
        yield f"# Written by unilaunch launch --emit {self.kind}: kubectl create -f FILE"
        if options.image == IMAGE:
            yield f"# Put an image that has unilaunch in it in place of {IMAGE}, or add --image."
        # A key may have a dot, and a shell's variable may not.
        hidden = {name: f'"${{{name.replace(".", "_")}:?}}"' for name in self.plan.request.secret_names}
        if keys := {**own_keys, **hidden}:
            values = " ".join(f"--from-literal={key}={value}" for key, value in keys.items())
            place = f" -n {options.namespace}" if options.namespace else ""
            make = f"kubectl create secret generic {self.name}{place} {values} --dry-run=client -o yaml"
            yield f"# Before the first start, and when a name is added: {make} | kubectl apply -f -"
        patched = _patched(documents, options.patch) if options.patch else documents
        yield "---\n".join(
            yaml.dump(fields, Dumper=_Dumper, sort_keys=False, width=4096) for fields in patched
        ).rstrip()


def _volumes(options: PodSpec) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return where a container has the user's volumes, and the volumes.

    Raises:
        SpecError: Two are mounted at one place.
    """
    parts = [volume.partition(":") for volume in options.volume]
    places = Counter(["/dev/shm", *(folder.rstrip("/") for _, _, folder in parts)])  # noqa: S108
    if twice := [place for place, number in places.items() if number > 1]:
        raise SpecError(f"--volume: {twice[0]} is mounted twice: give each volume a folder of its own")
    names = {claim: f"claim-{number}" for number, claim in enumerate(dict.fromkeys(claim for claim, _, _ in parts))}
    mounts = [{"name": names[claim], "mountPath": folder} for claim, _, folder in parts]
    return mounts, [{"name": name, "persistentVolumeClaim": {"claimName": claim}} for claim, name in names.items()]


def command(words: Sequence[str]) -> list[str]:
    """Return a container's command, which Kubernetes leaves as it is."""
    return [_unexpanded(word) for word in words]


def from_field(name: str, path: str) -> dict[str, Any]:
    """Return a variable whose value is a field of its pod."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _unexpanded(text: str) -> str:
    """Return text for a manifest: Kubernetes reads $(NAME) as the value of a variable, and $$ as one dollar sign.

    A reference to a variable becomes $(NAME).

    Raises:
        SpecError: It has a byte that is not UTF-8.
    """
    if any("\udc80" <= letter <= "\udcff" for letter in text):
        raise SpecError(f"{text!r}: not UTF-8, and a manifest holds nothing else: write it in UTF-8")
    name = re.escape(reference("NAME")).replace("NAME", "(.*?)")
    return re.sub(name, r"$(\1)", text.replace("$", "$$"))


def _patched(documents: Sequence[Mapping[str, Any]], file: Path) -> list[Any]:
    """Return the objects with what a file adds to each of them, and to each of their pods.

    Raises:
        SpecError: It cannot be read, or has other fields than objects and pods can have.
    """
    try:
        patch = yaml.safe_load(file.read_bytes())
    except OSError as error:
        raise SpecError(f"--patch {file}: {error.strerror}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SpecError(f"--patch {file}: not YAML: {' '.join(str(error).split())}") from None
    is_known = isinstance(patch, dict) and patch.keys() <= {"metadata", "spec", "pod"}
    if not is_known or not all(isinstance(fields, dict) for fields in patch.values()):
        raise SpecError(
            f"--patch {file}: expected fields under metadata, spec and pod, such as pod: {{nodeSelector: ...}}"
        )
    of_pod = patch.pop("pod", {})
    return [_merged(_with_pods(fields, of_pod), patch) for fields in documents]


def _with_pods(value: Any, patch: Any) -> Any:
    """Return an object whose pods have a patch: what has containers is the spec of a pod."""
    if isinstance(value, list):
        return [_with_pods(one, patch) for one in value]
    if not isinstance(value, Mapping):
        return value
    if "containers" in value:
        return _merged(value, patch)
    return {name: _with_pods(one, patch) for name, one in value.items()}


def _merged(value: Any, patch: Any) -> Any:
    """Return a value with a patch (RFC 7386): fields are merged, null removes one, all else is replaced."""
    if not isinstance(patch, Mapping):
        return patch
    known = value if isinstance(value, Mapping) else {}
    named = dict.fromkeys([*known, *patch])
    return {
        name: _merged(known.get(name), patch[name]) if name in patch else known[name]
        for name in named if name not in patch or patch[name] is not None
    }  # fmt: skip
