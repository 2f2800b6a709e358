"""Read options, environment and file into a checked task."""

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from unilaunch.errors import SpecError
from unilaunch.interfaces import plugins
from unilaunch.interfaces.model import Model
from unilaunch.machine.devices import count_ranks
from unilaunch.overriding import override
from unilaunch.record import Record
from unilaunch.spec.redaction import redact_words
from unilaunch.spec.run_spec import RunSpec, Spec, option_of, validate
from unilaunch.spec.target import Target, read_target
from unilaunch.spec.task import LEFT_OUT, STARTED_IN, Machine, Task
from unilaunch.spec.variables import CONFIG_VARIABLE, is_of_a_service, read_variables, variable_of

S = TypeVar("S", bound=RunSpec)
AnySpec = TypeVar("AnySpec", bound=Spec)
_HOSTS = {"hosts", "hostfile"}
_ENDPOINT = re.compile(r"(?:(?P<bare>[^][:]+)|\[(?P<bracketed>[^][]+)\])(?::(?P<port>0*[1-9]\d{0,4}))?")
#: What a variable says of the machine that has it, and not of a container elsewhere.
_OF_A_MACHINE = {*_HOSTS, "allow_run_as_root", "data_dir", "mpirun", "prefix", "cwd", "interface", "master_addr"}
#: The variables of SkyPilot; the address of node 0 is the first of several lines.
_SKYPILOT = {"nnodes": "SKYPILOT_NUM_NODES", "node_rank": "SKYPILOT_NODE_RANK", "master_addr": "SKYPILOT_NODE_IPS"}
_INDEX = "JOB_COMPLETION_INDEX"  # of an indexed Job of Kubernetes; how many pods it has no variable says
_LARGEST_FILE = 1 << 20  # bytes


class _Source(Record):
    """Fields that are set in one place. Of several sources the later one wins.

    Attributes:
        fields: The values by field.
        name: Returns how the user calls the place, by field: "--seed", "run.toml: seed".
    """

    fields: Mapping[str, Any]
    name: Callable[[str], str]


def read_task(
    kind: type[S], given: Mapping[str, Any], environ: Mapping[str, str], machine: Machine = Machine.HERE
) -> Task[S]:
    """Return the user's task. Options override the environment, and the environment overrides the file.

    Args:
        kind: The spec's type.
        given: The options of the command line as text, by field; "config" names a file, "spec" is all as JSON.
        environ: The process's environment.
        machine: Where the job will run.

    Raises:
        SpecError: Something is not allowed.
        PluginError: The model or the backend is not installed.
    """
    target, sources = _read_whole(given, machine) if "spec" in given else _read_sources(kind, given, environ, machine)
    if machine is Machine.HERE and "nnodes" in kind.model_fields:
        nodes = _nodes(_merge(sources), environ)
        sources = [_Source(nodes, lambda field: f"the environment's {field}"), *sources]
    values = _merge(sources)
    resolve_ranks(values, environ, machine)
    names = {field: source.name(field) for source in sources for field in source.fields}
    return make_task(kind, target, values, names, machine)


def _read_sources(
    kind: type[RunSpec], given: Mapping[str, Any], environ: Mapping[str, str], machine: Machine
) -> tuple[Target, list[_Source]]:
    """Return the target, and what a file, the environment and the options set."""
    options = {field: value for field, value in given.items() if field != "config"}
    variables = read_variables(environ, kind.model_fields, known_fields)
    config = str(given.get("config") or environ.get(CONFIG_VARIABLE, ""))
    file = read_file(Path(config), given) if config else {}
    every = {**file, **variables, **options}
    if "target" not in every:
        _refuse_script_as_value(options)
    target = _choose(every, machine)
    file = _of_command(kind, _unfold(file, target, config), config, typed="config" in given)
    model = plugins.models()[target.name].spec if target.kind == "model" else None
    # The environment may set options of another model or command; on the command line and in a file that is an error.
    mine = {*kind.model_fields, *(model.model_fields if model else ())}
    variables = {field: value for field, value in variables.items() if field in mine}
    others: Mapping[str, str] = {}
    if machine is Machine.IMAGE:
        variables = {field: value for field, value in variables.items() if field not in _OF_A_MACHINE}
    elif model:
        others = {
            field: name for name, field in model.other_variables.items() if environ.get(name) and field not in variables
        }
        variables |= {field: environ[name] for field, name in others.items()}
    return target, [
        _Source({} if machine is Machine.IMAGE else _meeting(environ), str.upper),  # of this shell, and not of a pod
        _Source(_without_hosts(file, variables, options), lambda field: f"{config}: {field}"),
        _Source(_without_hosts(variables, options), lambda field: others.get(field) or variable_of(field, environ)),
        _Source(options, option_of),
    ]


def _read_whole(given: Mapping[str, Any], machine: Machine) -> tuple[Target, list[_Source]]:
    """Return the target and the fields from the JSON of `--spec`, and the program's arguments."""
    if others := set(given) - {"spec", "args"}:
        named = ", ".join(map(option_of, sorted(others)))
        raise SpecError(f"--spec: it says everything; leave out {named}")
    try:
        fields = json.loads(given["spec"])
    except (ValueError, RecursionError) as error:
        raise SpecError(f"--spec: {error}: expected a spec as JSON") from None
    if not isinstance(fields, dict):
        raise SpecError(f"--spec: expected fields (name and value), found {type(fields).__name__}")
    fields |= {"args": given["args"]} if "args" in given else {}
    target = _choose(fields, machine)
    return target, [_Source(_unfold(fields, target, "--spec"), lambda field: f"--spec: {field}")]


def _merge(sources: Iterable[_Source]) -> dict[str, Any]:
    return {field: value for source in sources for field, value in source.fields.items()}


def _of_command(kind: type[RunSpec], file: Mapping[str, Any], path: str, *, typed: bool) -> dict[str, Any]:
    """Return a file's fields without those of `launch`, if the command is another one.

    A variable may name the file of another command; on the command line that is an error.
    """
    if not file:
        return {}
    from unilaunch.spec.launch_spec import LaunchSpec

    others = [field for field in file if field in LaunchSpec.model_fields and field not in kind.model_fields]
    if others and typed:
        raise SpecError(f"{path}: {', '.join(others)}: only launch can do that: type unilaunch launch --config {path}")
    return {field: value for field, value in file.items() if field not in others}


def read_options(
    kind: type[AnySpec], given: Mapping[str, Any], environ: Mapping[str, str], fields: Collection[str] = ()
) -> AnySpec:
    """Return the options of a command that starts no job; UNILAUNCH_ variables set those of *fields* not *given*.

    Without *fields* they set all. A command that reads the folder of a run finds it where UNILAUNCH_OUTPUT_DIR lets
    jobs write.

    Raises:
        SpecError: A value is not allowed, or a variable names no option.
    """
    fields = fields or kind.model_fields
    known = read_variables(environ, fields, known_fields)
    if "folder" in fields and "output_dir" in known:
        known.setdefault("folder", known["output_dir"])
    variables = {name: text for name, text in known.items() if name in fields}
    variables = _without_hosts(variables, given)
    sources = {name: variable_of(name, environ) for name in variables.keys() - given.keys()}
    return validate(kind, {**variables, **given}, sources)


def _refuse_script_as_value(options: Mapping[str, Any]) -> None:
    """Raise an error if an option took a script as its value: without a target the default one would run."""
    for field, value in options.items():
        last = value[-1] if isinstance(value, list) and value else value
        last = last[-1] if isinstance(last, list) and last else last  # of --mca NAME VALUE
        if str(last).endswith(".py") and os.path.isfile(str(last)):  # noqa: PTH113  (raises nothing)
            raise SpecError(f"{option_of(field)} {last}: no TARGET is given: does this option lack its value?")


def known_fields() -> Iterator[Collection[str]]:
    """Yield the names of the options of `launch`, of each model and of each command, which are imported one by one."""
    from unilaunch.spec.launch_spec import DoctorSpec  # a rank needs this only for a UNILAUNCH_ variable

    yield DoctorSpec.model_fields  # those of `launch` too
    yield from (model.spec.model_fields for model in plugins.models().values())
    yield from (command.spec.model_fields for command in plugins.commands().values())


def _choose(values: Mapping[str, Any], machine: Machine) -> Target:
    text = str(values.get("target", RunSpec.model_fields["target"].default))
    return read_target(text, plugins.named_models(text), here=machine is not Machine.IMAGE)


def _without_hosts(weaker: Mapping[str, Any], *stronger: Mapping[str, Any]) -> dict[str, Any]:
    """Return a source without its hosts, if a stronger one names hosts: --hosts and --hostfile count as one option."""
    named = any(_HOSTS & set(one) for one in stronger)
    return {field: value for field, value in weaker.items() if not (named and field in _HOSTS)}


def _meeting(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the user's variables for rank 0's address; if a launcher or a Service has set them, they are no user's."""
    others = {name for launcher in _launchers() for name in launcher.exports(environ)}
    return {
        name.lower(): environ[name]
        for name in ("MASTER_ADDR", "MASTER_PORT")
        if environ.get(name) and name not in others and not is_of_a_service(name, environ[name])
    }


def _nodes(values: Mapping[str, Any], environ: Mapping[str, str]) -> Mapping[str, str]:
    """Return what an orchestrator says of the nodes; nothing where the user names hosts, or another start."""
    if values.keys() & {"hosts", "hostfile", "mpirun"} or values.get("launcher") == "mpirun":
        return {}
    skypilot = {field: environ[name].split()[0] for field, name in _SKYPILOT.items() if environ.get(name, "").strip()}
    each: Iterable[Mapping[str, str]] = (skypilot, *(launcher.nodes(environ) for launcher in _launchers()))
    for nodes in each:
        if nodes.get("nnodes", "1") != "1":
            return nodes
    return {"node_rank": environ[_INDEX]} if "nnodes" in values and environ.get(_INDEX) else {}


def _launchers() -> Iterable[Any]:
    """Return the launchers as plug-ins: their package is above this one."""
    return plugins.make_all(plugins.LAUNCHERS).values()


def _unfold(file: Mapping[str, Any], target: Target, path: str) -> dict[str, Any]:
    """Return a file's fields, with those under `options` (the target's options in `spec.json`) at the top level."""
    options = file.get("options", {})
    if not isinstance(options, Mapping):
        raise SpecError(f"{path}: options: expected the target's options by name, found {options!r}")
    own = {field: value for field, value in file.items() if field != "options"}
    return own | unfold_options(options, target, own.get("args", ()))


def unfold_options(options: Mapping[str, Any], target: Target, args: object = ()) -> dict[str, Any]:
    """Return a spec's `options` as fields: a model's options by name, a function's as words NAME=JSON after *args*.

    Raises:
        SpecError: The target is a script or a module, which has arguments but no options; or a function cannot get
            these arguments.
    """
    if not options:
        return {}
    if target.kind == "model":
        return {str(field).replace("-", "_"): value for field, value in options.items() if value is not None}
    if target.kind == "function":
        if not isinstance(args, list | tuple):
            raise SpecError(f"args: must be a list of text, not {args!r}")
        return {"args": (*args, *(_argument(name, value) for name, value in options.items()))}
    named = ", ".join(map(str, options))
    raise SpecError(f"{named}: a {target.kind} has no options; what it is to find in sys.argv goes into args")


def _argument(name: str, value: object) -> str:
    try:
        return named_word(name, json.dumps(value))
    except (TypeError, ValueError, RecursionError) as error:  # TOML and YAML have dates
        raise SpecError(f"options: {name}: cannot be sent to the ranks ({error}): write it as text") from None


def named_word(name: str, text: str) -> str:
    """Return a function's argument NAME=JSON.

    Raises:
        SpecError: The rank would take the word for an argument by position.
    """
    if not str(name).isidentifier():
        raise SpecError(f"{name!r}: cannot be the name of an argument: expected letters, digits and _")
    return f"{name}={text}"


def resolve_ranks(values: dict[str, Any], environ: Mapping[str, str], machine: Machine = Machine.HERE) -> None:
    """Let `nprocs` in *values* be the number of all ranks, and count what "gpu", "cpu" and "auto" name on this host.

    Where there are several nodes, the address of node 0 is read from `rdzv_endpoint`.

    Raises:
        SpecError: A number is another word, the numbers contradict each other, or the job is for another machine.
        PlacementError: There is no device, and "gpu" asks for one.
    """
    _read_endpoint(values)
    for field, typed in (("nprocs", "-n"), ("nproc_per_node", "--nproc-per-node")):
        kind = values.get(field)
        if isinstance(kind, str) and kind.isalpha():
            if kind not in {"gpu", "cpu", "auto"}:
                raise SpecError(f"{typed} {kind}: expected a number of ranks, gpu, cpu or auto")
            if machine is not Machine.HERE:
                raise SpecError(
                    f"{typed} {kind} counts what this host has, and a job file is for another: give a number"
                )
            values[field] = count_ranks(kind, environ)
    nodes, each, every = (str(values.get(field, "")) for field in ("nnodes", "nproc_per_node", "nprocs"))
    nodes = nodes.partition(":")[0] or "1"
    if not (nodes.isdecimal() and each.isdecimal()):
        return
    if every.isdecimal() and int(every) != int(each) * int(nodes):
        raise SpecError(
            f"-n {every} counts all ranks, and --nproc-per-node {each} those of each of {nodes} nodes: leave one of "
            "the two out, or say how many nodes there are: --nnodes"
        )
    values["nprocs"] = int(each) * int(nodes)


def _read_endpoint(values: dict[str, Any]) -> None:
    """Let torchrun's --rdzv-endpoint be the address and the port of node 0; one node has no use for it."""
    endpoint = str(values.get("rdzv_endpoint") or "")
    if not endpoint or str(values.get("nnodes", "1")).partition(":")[0] == "1":
        return
    parts = _ENDPOINT.fullmatch(endpoint)
    if not parts:
        raise SpecError(f"--rdzv-endpoint {endpoint}: expected ADDRESS or ADDRESS:PORT, with a port above 0")
    values.setdefault("master_addr", parts["bare"] or parts["bracketed"])
    if parts["port"]:
        values.setdefault("master_port", parts["port"])


def make_task(
    kind: type[S],
    target: Target,
    values: Mapping[str, Any],
    sources: Mapping[str, str],
    machine: Machine = Machine.HERE,
) -> Task[S]:
    """Return the task that *values* describe: the fields of the spec and of the model.

    Raises:
        SpecError: Something is not allowed.
        PluginError: The backend is not installed.
    """
    here = machine is not Machine.IMAGE
    if target.kind != "model":
        spec = validate(kind, values, sources)
        return Task(spec, target, None, None, plugins.backends_of_program(spec.backend, here=here))
    model = plugins.models()[target.name]
    spec, options = _validate_both(kind, model, values, sources)
    if not here:
        return Task(spec, target, model, options, plugins.backends_of_program(spec.backend, here=False))
    backend = plugins.load_backend(spec.backend)
    return Task(spec.model_copy(update={"backend": backend.name}), target, model, options, (backend,))


def _validate_both(
    kind: type[S], model: Model, values: Mapping[str, Any], sources: Mapping[str, str]
) -> tuple[S, Spec]:
    """Return the spec and the model's options; the faults of both are reported in one error."""
    core = {field: value for field, value in values.items() if field in kind.model_fields}
    rest = {field: value for field, value in values.items() if field not in core}
    try:
        spec = validate(kind, core, sources)
    except SpecError as fault:
        try:
            validate(model.spec, rest, sources, kind.model_fields)
        except SpecError as other:
            raise SpecError(f"{fault}; {other}") from None
        raise
    if spec.args:
        words = " ".join(redact_words(spec.args))
        raise SpecError(f"args: {model.name} is a model and has options, no arguments: {words}")
    return spec, validate(model.spec, rest, sources, kind.model_fields)


def read_file(path: Path, given: Container[str] = ()) -> dict[str, Any]:
    """Return the fields that a TOML, YAML or JSON file sets.

    Args:
        path: The file.
        given: The fields that the command line sets.

    Raises:
        SpecError: There is no such file, it cannot be parsed, it is not a table of fields, or values are left out.
    """
    path = Path(os.path.expanduser(path))  # noqa: PTH111  (raises nothing where there is no home)
    try:
        if path.exists() and not path.is_file():
            raise SpecError(f"{path}: cannot be read: not a file")
        with path.open("rb") as file:
            data = file.read(_LARGEST_FILE + 1)
        text = data.decode("utf-8-sig")  # editors on Windows put a byte order mark first
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: cannot be read: {error}") from error
    if len(data) > _LARGEST_FILE:
        raise SpecError(f"{path}: it has more than {_LARGEST_FILE >> 20} MiB: expected a file of options")
    fields = _parse(path, text)
    if not isinstance(fields, dict):
        raise SpecError(f"{path}: expected fields (name and value), found {type(fields).__name__}")
    fields.pop(STARTED_IN, None)  # paths of the file are relative to where it is used
    if fields.pop(LEFT_OUT, False) and "args" not in given:
        raise SpecError(
            f"{path}: args: the values of secrets are left out: give the target and all its arguments on the command "
            "line"
        )
    try:
        return _table([(str(name).replace("-", "_"), value) for name, value in fields.items()])
    except ValueError as error:
        raise SpecError(f"{path}: {error}") from None


def _table(pairs: Sequence[tuple[Any, Any]]) -> dict[Any, Any]:
    """Return a table of names and values; raise a ValueError if a name is there twice: one of them would be lost."""
    table = dict(pairs)
    if len(table) < len(pairs):
        (name, _), *_ = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"{name}: given twice")
    return table


def _parse(path: Path, text: str) -> object:
    try:
        match path.suffix:
            case ".toml":
                import tomllib

                return tomllib.loads(text)
            case ".yaml" | ".yml":
                return _parse_yaml(text)
            case ".json":
                import json

                return json.loads(text, object_pairs_hook=_table)
    except Exception as error:  # each library has its own exception; each message names the place
        raise SpecError(f"{path}: {' '.join(str(error).split())}") from error
    raise SpecError(f"{path}: the file's name must end in .toml, .yaml, .yml or .json")


def _parse_yaml(text: str) -> object:
    import yaml

    if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text)):  # a few lines can expand to gigabytes
        raise ValueError("aliases (*name) are not read: write the value out")

    class Loader(yaml.SafeLoader):
        @override
        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            _table([(key.value, value) for key, value in node.value])
            return super().construct_mapping(node, deep)

    return yaml.load(text, Loader)  # noqa: S506  (it is a SafeLoader)
