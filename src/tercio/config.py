"""Configuration of one process: a frozen tree, passed as an argument, never global.

Precedence: flag > environment (`TERCIO_SECTION__KEY`) > file > default. Every byte of it is
checked: an unknown key is an error that names the nearest known one. What scheduling should
do (queues, weights) is policy and lives in the journal, not here.

>>> config, origins = load(flags={"server.port": 9000}, environ={}, paths=())
>>> config.server.port, origins["server.port"], origins["server.host"]
(9000, 'flag', 'default')
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

from tercio.errors import UserError, did_you_mean

_PREFIX: Final = "TERCIO_"
_SYSTEM_FILE: Final = Path("/etc/tercio/config.toml")
_SYSTEM_STATE: Final = "/var/lib/tercio"


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the API listens.

    Attributes:
        host: address to bind; anything but loopback needs TLS or `trusted_proxy`.
        port: TCP port; 0 takes a free one.
        tls_cert, tls_key: PEM files; both or none.
        trusted_proxy: address of the proxy that ends TLS in front of the server; empty for
            none. Only its forwarded headers are believed.
        public_url: URL by which people reach the web page, with the path that a proxy puts
            before it; empty for the address itself.
        body_bytes_max: largest request body, uploads of working directories apart.
    """

    host: str = "127.0.0.1"
    port: int = 7400
    tls_cert: str = ""
    tls_key: str = ""
    trusted_proxy: str = ""
    public_url: str = ""
    body_bytes_max: int = 16 * 1024**2

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65_535:
            raise ValueError("port must be 0 to 65535")
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ValueError("tls_cert and tls_key are given together")
        if self.body_bytes_max < 1024:
            raise ValueError("body_bytes_max must be at least 1024")
        if self.public_url and not self.public_url.startswith(("http://", "https://")):
            raise ValueError("public_url must begin with http:// or https://")


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often decisions are made.

    Attributes:
        seed: of the scheduler's random choices; the same seed decides the same.
        busy_ratio: largest share of the server's time that long cycles may take.
        short_cycle_s: cycles up to this long are never put off.
    """

    seed: int = 0
    busy_ratio: float = 0.5
    short_cycle_s: float = 0.02

    def __post_init__(self) -> None:
        if not 0.01 <= self.busy_ratio <= 1.0:
            raise ValueError("busy_ratio must be 0.01 to 1")
        if self.short_cycle_s < 0:
            raise ValueError("short_cycle_s must not be negative")


class StoreConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is kept, and how long.

    Attributes:
        job_days: finished jobs, their logs and secrets are forgotten after so many days.
        event_days: journal entries of nothing that is still there are dropped after so many.
        checkpoint_entries: a checkpoint is written after so many entries.
        workdir_days: uploaded working directories that no job refers to are kept so long.
        workdir_bytes_max: largest uploaded working directory, compressed.
    """

    job_days: float = 30.0
    event_days: float = 30.0
    checkpoint_entries: int = 20_000
    workdir_days: float = 1.0
    workdir_bytes_max: int = 1024**3

    def __post_init__(self) -> None:
        for name in ("job_days", "event_days", "workdir_days"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative")
        for name in ("checkpoint_entries", "workdir_bytes_max"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")


class RuntimeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds of the server's inside.

    Attributes:
        requests_max: commands that may wait for their turn; more wait at the door.
        turn_max: commands and observations taken in one turn, hence in one transaction.
        effects_max: effects performed at once on one engine.
        store_retry_s: first pause before a refused journal is tried again; doubles to 16 times.
        webhook_timeout_s: for one call of a webhook.
    """

    requests_max: int = 1024
    turn_max: int = 1024
    effects_max: int = 64
    store_retry_s: float = 0.5
    webhook_timeout_s: float = 10.0

    def __post_init__(self) -> None:
        for name in ("requests_max", "turn_max", "effects_max"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        for name in ("store_retry_s", "webhook_timeout_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be more than 0")


class LocalConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The engine that runs tasks on this machine.

    Attributes:
        enabled: whether this machine runs tasks.
        run_as: system user for tasks when the server runs as root and the job's own user
            does not exist here; empty refuses such a job.
        cpu_devices: CPU devices to declare, or None for 2 on a machine with less than 2
            accelerators and none elsewhere.
        log_bytes_max: size at which a task's log file is rotated.
        log_files_max: rotated files kept for each stream of a task.
        nodes: this machine as several nodes, each with some of its devices by index, and with
            labels, such as `n1=0-3 rack=r1; n2=4-6; n3=7 spare`; empty for one node with all.
        containers: what runs the images of jobs: `docker`, `podman`, `apptainer`,
            `singularity`; `auto` for the first that answers, `off` for none.
    """

    enabled: bool = True
    run_as: str = "nobody"
    cpu_devices: int | None = None
    log_bytes_max: int = 64 * 1024**2
    log_files_max: int = 4
    nodes: str = ""
    containers: Literal["auto", "off", "docker", "podman", "apptainer", "singularity"] = "auto"

    def __post_init__(self) -> None:
        if self.cpu_devices is not None and not 0 <= self.cpu_devices <= 4096:
            raise ValueError("cpu_devices must be 0 to 4096")
        if self.log_bytes_max < 1024**2:
            # The log of a task goes in pieces that must each hold several longest lines.
            raise ValueError("log_bytes_max must be at least 1048576 (1 MiB)")
        if self.log_files_max < 1:
            raise ValueError("log_files_max must be at least 1")


class HealthConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How this machine is watched, and what may mend a node.

    What to do about a fault is policy: `tercio health policy`.

    Attributes:
        watch: whether the server watches the devices of its own machine.
        poll_s: between two readings of a node.
        probe_timeout_s: a driver that has not answered by then is a fault itself.
        kernel_log: `kmsg`, a file, or empty for none.
        overrides: the site's own verdicts on fault codes (TOML), empty for none.
        repair_command: program that resets, reboots or power-cycles a node; it gets the action
            and the node as arguments, and says by its exit code whether it worked.
        job_files: directory in which the server says, for a dcgm-exporter of its own machine, which
            job holds which GPU (its `--hpc-job-mapping-dir`); empty for none.
        otlp: address of an OpenTelemetry collector that is sent the metrics over HTTP, such as
            `http://collector:4318/v1/metrics`; empty for none. Needs `tercio[otel]`.
        otlp_every_s: between two sendings.
        keep_s: how long the newest reading of a silent node is kept in memory.
        prices: CSV of `hour,gco2_per_kwh,usd_per_kwh`, a file or an address (`https://...`) that
            is read again and again; empty for none.
        device_usd_per_hour: price of one device for an hour, for the cost of jobs; 0 for none.
        pue: power of the site over power of its machines.
    """

    watch: bool = True
    poll_s: float = 10.0
    probe_timeout_s: float = 20.0
    kernel_log: str = "kmsg"
    overrides: str = ""
    repair_command: str = ""
    job_files: str = ""
    otlp: str = ""
    otlp_every_s: float = 60.0
    keep_s: float = 3600.0
    prices: str = ""
    device_usd_per_hour: float = 0.0
    pue: float = 1.3

    def __post_init__(self) -> None:
        for name in ("poll_s", "probe_timeout_s", "keep_s", "otlp_every_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be more than 0")
        if self.device_usd_per_hour < 0:
            raise ValueError("device_usd_per_hour must not be negative")
        if self.pue < 1:
            raise ValueError("pue must be at least 1")


class SimConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The simulated engine, used by `tercio demo`.

    Attributes:
        cluster: a cluster file or a shape such as `8x8`; empty for no simulated cluster.
        seed: of the simulated run times and faults.
        readings: whether the simulated devices report simulated power, temperature and use.
    """

    cluster: str = ""
    seed: int = 0
    readings: bool = False


class ShadowConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A policy that runs in shadow from the start on, see `tercio up --policy FILE --shadow`.

    Attributes:
        policy: policy file, empty for none; one that ran in shadow before goes on.
    """

    policy: str = ""


class LogConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The server's own log. `format` is `console`, `json` or `auto` (console on a terminal)."""

    level: str = "info"
    format: str = "auto"

    def __post_init__(self) -> None:
        if self.level not in ("debug", "info", "warning", "error"):
            raise ValueError("level must be debug, info, warning or error")
        if self.format not in ("console", "json", "auto"):
            raise ValueError("format must be console, json or auto")


class ConvertConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What names in the job files of other tools mean on this site.

    Attributes:
        partitions: device type by Slurm partition, such as `{gpu-a = "A100-80GB"}`: batch scripts
            seldom name the type.
    """

    partitions: dict[str, str] = {}


class SizingConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `devices: auto` is chosen with.

    Attributes:
        site: file of the site's own prices, parts and probes (YAML), empty for none. It is read
            again for every job that is sized.
    """

    site: str = ""


class SlurmConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How `tercio slurm resume` and `suspend` switch nodes, as Slurm's programs for that.

    Attributes:
        resume_command: program that switches nodes on; it gets their names as arguments.
        suspend_command: program that switches nodes off.
        power_timeout_s: how long either may take; less than Slurm's ResumeTimeout.
        power_log: file that gets one line for each call, empty for none.
    """

    resume_command: str = ""
    suspend_command: str = ""
    power_timeout_s: float = 120.0
    power_log: str = ""

    def __post_init__(self) -> None:
        if self.power_timeout_s <= 0:
            raise ValueError("power_timeout_s must be more than 0")


class ClientConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which server the command line talks to; empty for the one of the state directory.

    Attributes:
        url: such as `https://gpu.example.org:7400`.
        token_file: file that holds the token.
    """

    url: str = ""
    token_file: str = ""


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole tree. `state_dir` holds the journal and everything beside it."""

    state_dir: str = _SYSTEM_STATE
    server: ServerConfig = ServerConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    store: StoreConfig = StoreConfig()
    runtime: RuntimeConfig = RuntimeConfig()
    local: LocalConfig = LocalConfig()
    health: HealthConfig = HealthConfig()
    sim: SimConfig = SimConfig()
    shadow: ShadowConfig = ShadowConfig()
    log: LogConfig = LogConfig()
    convert: ConvertConfig = ConvertConfig()
    sizing: SizingConfig = SizingConfig()
    slurm: SlurmConfig = SlurmConfig()
    client: ClientConfig = ClientConfig()

    @property
    def state_path(self) -> Path:
        """The state directory as a path."""
        return Path(self.state_dir)


Origins = dict[str, str]
"""Where each setting came from, by dotted key: `flag`, `environment NAME`, `file PATH` or
`default`."""


def load(
    flags: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    paths: Sequence[Path] | None = None,
) -> tuple[Config, Origins]:
    """Read the configuration and say where each setting came from.

    Args:
        flags: by dotted key, such as `server.port`; None values are not given.
        environ: environment; the process's own by default.
        paths: files, later ones win, absent ones are passed over; None searches the usual
            places and insists on the file that TERCIO_CONFIG names.

    Raises:
        UserError: an unknown key or a wrong value, with its place and a fix.
    """
    environ = os.environ if environ is None else environ
    files = search_paths(environ) if paths is None else tuple(paths)
    values: dict[str, object] = {"state_dir": default_state_dir(environ)}
    origins: Origins = dict.fromkeys(_leaves(), "default")
    for path in files:
        for key, value in _read_file(path, is_required=str(path) == environ.get("TERCIO_CONFIG")):
            values[key], origins[key] = value, f"file {path}"
    for name, key, value in _read_environment(environ):
        values[key], origins[key] = value, f"environment {name}"
    for key, flag in (flags or {}).items():
        if flag is not None:
            _check_key(key, f"flag {key}")
            values[key], origins[key] = flag, "flag"
    return _build(values, origins), origins


def search_paths(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the configuration files that are read when none is named, lowest first."""
    named = environ.get("TERCIO_CONFIG")
    if named:
        return (Path(named),)
    if os.geteuid() == 0:
        return (_SYSTEM_FILE,)
    home = environ.get("XDG_CONFIG_HOME") or str(Path(environ.get("HOME", "~")) / ".config")
    return (_SYSTEM_FILE, Path(home).expanduser() / "tercio" / "config.toml")


def default_state_dir(environ: Mapping[str, str]) -> str:
    """Return the state directory for this user: the system's for root, else below home."""
    if os.geteuid() == 0:
        return _SYSTEM_STATE
    base = environ.get("XDG_STATE_HOME")
    home = Path(base) if base else Path(environ.get("HOME", "~")).expanduser() / ".local/state"
    return str(home / "tercio")


def settings(config: Config) -> Iterator[tuple[str, object]]:
    """Yield every setting as (dotted key, value), in order of declaration."""
    for key in _leaves():
        section, dot, name = key.partition(".")
        part = getattr(config, section)
        yield key, getattr(part, name) if dot else part


def _leaves() -> dict[str, object]:
    """Return the type of every setting by dotted key."""
    found: dict[str, object] = {}
    for field in msgspec.structs.fields(Config):
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            for leaf in msgspec.structs.fields(field.type):
                found[f"{field.name}.{leaf.name}"] = leaf.type
        else:
            found[field.name] = field.type
    return found


def _check_key(key: str, place: str) -> None:
    known = _leaves()
    if key in known:
        return
    # A key is often right but in the wrong section; then similar letters would mislead.
    tail = key.rpartition(".")[2]
    namesakes = [f"'{k}'" for k in known if k.rpartition(".")[2] == tail]
    near = f"did you mean {' or '.join(namesakes)}?" if namesakes else did_you_mean(key, known)
    hint = near or "see `tercio config show` for every key"
    raise UserError(f"{place}: unknown setting '{key}'", hint=hint, field=key)


def _read_file(path: Path, *, is_required: bool) -> Iterator[tuple[str, object]]:
    import tomllib

    try:
        with path.open("rb") as stream:
            tree = tomllib.load(stream)
    except FileNotFoundError:
        if not is_required:
            return
        raise UserError(
            f"TERCIO_CONFIG names {path}, which does not exist",
            hint="write the file or unset TERCIO_CONFIG",
        ) from None
    except OSError as failure:
        raise UserError(f"cannot read {path}: {failure.strerror}") from failure
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as failure:
        raise UserError(f"{path} is not valid TOML: {failure}") from failure
    for section, value in tree.items():
        if isinstance(value, dict):
            for name, leaf in value.items():
                key = f"{section}.{name}"
                _check_key(key, str(path))
                yield key, leaf
        else:
            _check_key(section, str(path))
            yield section, value


def _read_environment(environ: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    for name in sorted(environ):
        if not name.startswith(_PREFIX):
            continue
        rest = name.removeprefix(_PREFIX)
        if rest == "STATE_DIR":
            yield name, "state_dir", environ[name]
        elif "__" in rest:
            key = rest.lower().replace("__", ".", 1)
            _check_key(key, name)
            yield name, key, environ[name]


def _build(values: Mapping[str, object], origins: Origins) -> Config:
    tree: dict[str, object] = {}
    sections: dict[str, dict[str, object]] = {}
    for key, value in values.items():
        leaf = _convert(key, value, origins[key])
        section, dot, name = key.partition(".")
        if dot:
            sections.setdefault(section, {})[name] = leaf
        else:
            tree[key] = leaf
    for section, leaves in sections.items():
        kind = next(f.type for f in msgspec.structs.fields(Config) if f.name == section)
        try:
            tree[section] = kind(**leaves)
        except ValueError as failure:
            given = [f"{k} ({origins[f'{section}.{k}']})" for k in leaves if k in str(failure)]
            where = ", ".join(given) or section
            raise UserError(f"{section}: {failure}; given by {where}", field=section) from failure
    return Config(**tree)  # type: ignore[arg-type]


def _convert(key: str, value: object, origin: str) -> object:
    kind = _leaves()[key]
    is_text = isinstance(value, str)
    if is_text and value == "" and kind == (int | None):
        return None
    if isinstance(value, str) and kind == dict[str, str]:
        # In the environment a table is written as `a=A100,b=H100`.
        value = dict(pair.strip().split("=", 1) for pair in value.split(",") if "=" in pair)
    try:
        return msgspec.convert(value, kind, strict=not is_text)
    except msgspec.ValidationError as failure:
        raise UserError(
            f"{key}: {value!r} is not right ({origin})",
            hint=str(failure).lower().replace("`", ""),
            field=key,
        ) from None
