"""A training as a job of Slurm, ssh, Cloud TPUs, SkyPilot or Kubernetes: a class for each."""

import json
import math
import re
import shlex
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from t2t_jax.errors import UserError, in_one_line, quote
from t2t_jax.extras.launch import job
from t2t_jax.system.atomic_file import write_whole
from t2t_jax.system.bucket import BucketPath
from t2t_jax.system.exit_codes import FINAL, STOPPED

_TIME = re.compile(r"\d+(:\d+){0,2}|\d+-\d+(:\d+){0,2}|UNLIMITED")
_JOB_FILE = "slurm.job"
_HOST = re.compile(r"[^\s:@]+(@[^\s:@]+)?")
_JOB = re.compile(r"^(\d+)(;\S+)?$", re.MULTILINE)
_TPU = re.compile(r"([a-z0-9-]+):(\d+(?:x\d+){1,2})")
# Texts that the YAML of Kubernetes reads as numbers or booleans, and PyYAML does not, such as 1e3.
_UNCLEAR = re.compile(r"[a-zA-Z]|[^a-zA-Z/].*")
_MEMORY = re.compile(r"[1-9]\d*[MGT]i")
_CPUS_PER_DEVICE, _GIB_PER_DEVICE = 2, 8  # the smallest hosts of a cloud with a GPU have these
_EXCLUSIVE = """annotations:
  alpha.jobset.sigs.k8s.io/exclusive-topology: cloud.google.com/gke-nodepool"""
_ONE_PROCESS = """{train} &
trap 'kill -TERM $! 2>/dev/null' TERM INT
wait $! # which a signal interrupts
wait $!"""
_HEADER = "# Written by t2t-jax launch kubernetes.\n"


@dataclass(frozen=True)
class Slurm(job.GpuHosts, job.TrainJob):
    """Write a batch job of Slurm, and submit it by sbatch."""

    hosts: int = 1
    """Number of nodes."""
    min_hosts: int | None = None
    """Number of nodes with which the job also starts, if no more are up; None is --hosts."""
    cpus: int | None = None
    """Cores of each node; None takes whole nodes, with all of their memory."""
    time: str = "24:00:00"
    """Time limit as 90 (minutes), 24:00:00 or 2-12; a job that reaches it is queued again."""
    grace: int = 180
    """Seconds before the time limit at which the training writes a checkpoint and stops."""

    file: ClassVar[str] = "slurm.sh"
    client: ClassVar[str] = "sbatch"
    shares_files: ClassVar[bool] = True

    @property
    def _fewest(self) -> int:
        return job.fewest_hosts(self.min_hosts, self.hosts)

    def check(self, training: job.LaunchedTraining) -> None:
        """Refuse numbers of nodes that do not fit each other or the mesh, beside what others do."""
        super().check(training)
        if self.grace < 1:
            raise UserError(f"--grace {self.grace} is no number of seconds above 0")
        if not _TIME.fullmatch(self.time):
            raise UserError(
                f"--time {self.time} is no time of Slurm; write minutes, HOURS:MINUTES:SECONDS or "
                "DAYS-HOURS, as in 24:00:00"
            )
        self.check_hosts(training, range(self._fewest, self.hosts + 1))

    def check_queue(self, folder: Path) -> None:
        """Refuse a run whose earlier job Slurm still has in its queue."""
        stored = folder / _JOB_FILE
        if not stored.is_file():
            return
        number = stored.read_text("utf-8", "replace").strip()
        queue = ["squeue", "--noheader", "--format=%T", f"--jobs={number}"]
        try:
            state = subprocess.run(queue, capture_output=True, text=True, errors="replace")
        except FileNotFoundError:
            return
        if state.returncode == 0 and state.stdout.strip():  # a job that is forgotten is an error
            raise UserError(
                f"job {number} of Slurm trains in {folder.parent} ({state.stdout.split()[0]}); "
                f"wait for it, or end it first: scancel {number}"
            )

    def text(self, training: job.LaunchedTraining, path: Path) -> str:
        """Return the batch script, which requeues itself."""
        gpus = [f"gpus-per-node={self.gpus}"] if self.gpus else []
        share = "--exclusive --mem=0" if self.cpus is None else f"--mincpus={self.cpus}"
        one_for_all = self.gpus and self.one_process_per == "host"
        log = path.absolute().with_name("slurm-%j.log")
        return self.filled(
            training,
            path,
            nodes="-".join(map(str, sorted({self._fewest, self.hosts}))),
            share=share,
            log=shlex.quote(f"{str(log.parent).replace('%', '%%')}/{log.name}"),
            options="\n".join(f"#SBATCH --{option}" for option in [*gpus, *self.options()]),
            devices=f"export JAX_LOCAL_DEVICE_IDS={self.devices[0]}" if one_for_all else "",
            processes=len(self.devices),
            record=shlex.quote(str(log.with_name("slurm"))),
            exclusion=job.exclusion("slurm_exclusion.sh", training, self._fewest),
        )

    def command(self, path: Path) -> list[str]:
        """Return the command of sbatch, which answers with the number of the job."""
        return ["sbatch", "--parsable", str(path)]

    def submitted(self, path: Path, answer: str) -> None:
        """Print the number of the job, and keep it for `check_queue`."""
        match = _JOB.search(answer)
        if match is None:
            raise UserError(
                f"sbatch answered {quote(in_one_line(answer))}, not with the number of a job; see "
                "squeue --me before you try again"
            )
        number = match[1]
        write_whole(path.parent / _JOB_FILE, f"{number}\n".encode())
        print(f"submitted as job {number}; its log: {path.with_name(f'slurm-{number}.log')}")


@dataclass(frozen=True)
class Ssh(job.GpuHosts, job.TrainJob):
    """Write a script that trains on hosts that see the files of this one, and start it.

    Each --option is one of ssh, such as Port=2222.
    """

    hosts: tuple[str, ...] = ()
    """Names of the hosts, or USER@NAME, by which they also find each other."""
    min_hosts: int | None = None
    """Number of hosts with which a training goes on without those that hung; None is all."""

    file: ClassVar[str] = "ssh.sh"
    client: ClassVar[str] = "ssh"
    shares_files: ClassVar[bool] = True
    in_foreground: ClassVar[bool] = True

    @property
    def _fewest(self) -> int:
        return job.fewest_hosts(self.min_hosts, len(self.hosts))

    def check(self, training: job.LaunchedTraining) -> None:
        """Refuse names of hosts, or a number of them that does not fit the mesh."""
        super().check(training)
        if not self.hosts:
            raise UserError("there is no host to train on; name some, as in --hosts gpu1 gpu2")
        [(name, count), *_] = Counter(self.hosts).most_common(1)
        if count > 1:
            raise UserError(f"--hosts names {name} {count} times; name each host once")
        for host in self.hosts:
            if not _HOST.fullmatch(host):
                raise UserError(
                    f"--hosts {quote(host)} is not NAME or USER@NAME; a port is --option Port=2222"
                )
        self.check_hosts(training, range(self._fewest, len(self.hosts) + 1))

    def text(self, training: job.LaunchedTraining, path: Path) -> str:
        """Return the script, which is called on the hosts, too."""
        train = self.train_command(training)
        options = [word for option in self.options() for word in ("-o", option)]
        return self.filled(
            training,
            path,
            hosts=shlex.join(self.hosts),
            script=self.script(train, host='"$1"', hosts='"$2"', first='"$3"'),
            options=shlex.join(options),
            exclusion=job.exclusion("ssh_exclusion.sh", training, self._fewest),
        )


@dataclass(frozen=True)
class Tpu(job.TrainJob):
    """Write a script that asks for a slice of TPUs and trains on all of its hosts, and start it.

    Each --option is a flag of gcloud's queued-resources create, such as spot. A host has one
    process, for all of its chips.
    """

    accelerator: str | None = None
    """Kind and size of the slice, as gcloud takes it: v5litepod-16."""
    runtime: str | None = None
    """Version of the hosts' system, as gcloud takes it: v2-alpha-tpuv5-lite."""
    zone: str | None = None
    """Zone of the slice."""
    setup: tuple[str, ...] = (
        "python3 -m pip install --quiet --user uv || exit",
        "[[ -d .venv ]] || ~/.local/bin/uv venv --quiet --python 3.12 || exit",
        ". .venv/bin/activate",
        "~/.local/bin/uv pip install --quiet -e '.[train,tpu,gcs]' || exit",
    )
    """Lines of shell that each host runs before the training, in a copy of this directory. The
    hosts' system has Python 3.10, so uv installs a newer one."""

    file: ClassVar[str] = "tpu.sh"
    client: ClassVar[str] = "gcloud"
    name_form: ClassVar[str] = r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?"
    name_rule: ClassVar[str] = "of small letters, digits and hyphens"
    in_foreground: ClassVar[bool] = True

    def check(self, training: job.LaunchedTraining) -> None:
        """Refuse a name that gcloud would not take, or flags that are missing."""
        super().check(training)
        for name in ("accelerator", "runtime", "zone"):
            if getattr(self, name) is None:
                raise UserError(f"a slice of TPUs needs --{name}; see t2t-jax launch tpu --help")

    def text(self, training: job.LaunchedTraining, path: Path) -> str:
        """Return the script."""
        options = [f"--{option}" for option in self.options()]
        return self.filled(
            training,
            path,
            zone=shlex.quote(str(self.zone)),
            accelerator=shlex.quote(str(self.accelerator)),
            runtime=shlex.quote(str(self.runtime)),
            options=shlex.join(options),
        )


@dataclass(frozen=True)
class SkyPilot(job.GpuHosts, job.TrainJob):
    """Write a task of SkyPilot, and start it by sky as a managed job.

    Each --option is one of the task's resources, such as infra=aws/us-east-1 or use_spot=true.
    """

    hosts: int = 1
    """Number of nodes."""
    gpus: int = 0
    """GPUs of a host, of the kind of --gpu; 0 trains on its CPU."""
    gpu: str = "H100"
    """Kind of the GPUs, as SkyPilot names it."""
    setup: tuple[str, ...] = ("pip install -e '.[train,cuda13,gcs,s3]'",)
    """Lines of shell that each host runs once, in the copy of the current directory."""

    file: ClassVar[str] = "skypilot.yaml"
    client: ClassVar[str] = "sky"

    def check(self, training: job.LaunchedTraining) -> None:
        """Refuse hosts on which the mesh of the config cannot lie, beside what all jobs refuse."""
        super().check(training)
        self.check_hosts(training, [self.hosts])

    def text(self, training: job.LaunchedTraining, path: Path) -> str:
        """Return the task."""
        resources = [("accelerators", json.dumps(f"{self.gpu}:{self.gpus}"))] if self.gpus else []
        resources += map(job.split_option, self.option)
        return self.filled(
            training,
            path,
            name=json.dumps(self.title(training)),
            resources="\n".join(f"{name}: {value}" for name, value in resources),
            script=self.script(
                self.train_command(training),
                host="$SKYPILOT_NODE_RANK",
                hosts=str(self.hosts),
                first='$(head -n1 <<<"$SKYPILOT_NODE_IPS")',
            ),
        )

    def command(self, path: Path) -> list[str]:
        """Return the command of sky, which waits for no question and no log."""
        return ["sky", "jobs", "launch", "--yes", "--detach-run", str(path)]


# A JobSet and not a Job: when one pod fails, all have to start again together, and only a JobSet
# counts that as one restart; and it is what GKE knows several slices of TPUs by. Each pod is told
# its place (`--coordinator`, `--process-id`), so it needs neither the package `kubernetes` nor
# rights.
@dataclass(frozen=True)
class Kubernetes(job.GpuHosts, job.TrainJob):
    """Write a JobSet, and create it by kubectl in the namespace of its context.

    Each --option is a label that nodes need, such as
    cloud.google.com/gke-accelerator=nvidia-h100-80gb.
    """

    image: str | None = None
    """Image of the repository's Dockerfile, built with the extras that the training needs."""
    hosts: int = 1
    """Number of pods, each on a host of its own; of every slice, with --tpu."""
    tpu: str | None = None
    """Kind and topology of the TPUs of a slice, as GKE names them: tpu-v6e-slice:4x4."""
    slices: int = 1
    """Number of slices of TPUs."""
    claim: str | None = None
    """Volume claim that has the run directory, unless that is in a bucket."""
    mount: Path = Path("/runs")
    """The place at which pods see the volume."""
    service_account: str | None = None
    """Service account of the pods, such as one that may write to the bucket."""
    secret: str | None = None
    """Secret whose keys become variables of the environment, such as AWS_ACCESS_KEY_ID."""
    grace: int = 180
    """Seconds that a pod has for its last checkpoint when it is stopped."""
    cpus: int = 0
    """CPUs that a pod requests; 0 is 2 for each device."""
    memory: str | None = None
    """Memory that a pod requests, such as 64Gi; None is 8 GiB for each device."""
    patch: Path | None = None
    """YAML file that is merged into the JobSet: tolerations, labels, a queue, network devices."""

    file: ClassVar[str] = "jobset.yaml"
    client: ClassVar[str] = "kubectl"
    name_form: ClassVar[str] = r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?"
    name_rule: ClassVar[str] = "of at most 40 small letters, digits and hyphens"

    def check(self, training: job.LaunchedTraining) -> None:
        """Refuse a name, a run directory, TPUs or resources that Kubernetes would not take."""
        super().check(training)
        if self.image is None:
            raise UserError("a pod needs an image; name one, as in --image registry/t2t-jax:1")
        if not isinstance(training.workdir, BucketPath):
            if self.claim is None:
                raise UserError(
                    f"pods have no {training.workdir}; name a bucket by --workdir, or the volume "
                    "claim that has the directory by --claim"
                )
            if not training.workdir.is_relative_to(self.mount):
                raise UserError(
                    f"--workdir {training.workdir} is not below --mount {self.mount}, where pods "
                    f"see the volume of --claim {self.claim}"
                )
        if self.memory is not None and not _MEMORY.fullmatch(self.memory):
            raise UserError(f"--memory {self.memory} is no amount of memory; write it as 64Gi")
        if self.tpu is None and self.slices != 1:
            raise UserError(f"--slices {self.slices} is about TPUs; name them by --tpu")
        if self.tpu is not None:
            job.check_mesh_fits(training, [(self.slices * self.hosts, self._chips(self.tpu))])
        else:
            self.check_hosts(training, [self.hosts])

    def _chips(self, tpu: str) -> int:
        """Return the chips of a host of a slice."""
        found = _TPU.fullmatch(tpu)
        if not found:
            raise UserError(f"--tpu {tpu} is not KIND:TOPOLOGY, as in tpu-v6e-slice:4x4")
        if self.gpus or self.one_process_per == "gpu":
            raise UserError(
                "--tpu is for pods without GPUs; leave --gpus and --one-process-per out"
            )
        chips = math.prod(map(int, found[2].split("x")))
        if self.hosts < 1 or self.slices < 1 or chips % self.hosts or chips // self.hosts > 8:
            raise UserError(
                f"the {chips} chips of --tpu {tpu} do not lie on {self.hosts} hosts of at most 8 "
                f"chips in each of {self.slices} slices; GKE says how many hosts a slice has"
            )
        return chips // self.hosts

    def text(self, training: job.LaunchedTraining, path: Path) -> str:
        """Return the manifest of the JobSet."""
        from t2t_jax.workdir import CHECKPOINTS

        name, train = self.title(training), self.train_command(training)
        labels = dict(map(job.split_option, self.option))
        device, count = "nvidia.com/gpu", self.gpus
        if self.tpu is not None:
            kind, _, topology = self.tpu.partition(":")
            labels |= {
                "cloud.google.com/gke-tpu-accelerator": kind,
                "cloud.google.com/gke-tpu-topology": topology,
            }
            device, count = "google.com/tpu", self._chips(self.tpu)
            # GKE tells the pods by TPU_* and MEGASCALE_* where the others of all slices are.
            script = _ONE_PROCESS.format(train=train)
        else:
            first = f"{name}-train-0-0.{name}"
            script = self.script(
                train, host="$JOB_COMPLETION_INDEX", hosts=str(self.hosts), first=first
            )
        account, claim, secret = self.service_account, self.claim, self.secret
        mount = str(self.mount) if claim else "/cache"
        claimed = f"persistentVolumeClaim:\n  claimName: {json.dumps(claim)}"
        manifest = self.filled(
            training,
            path,
            annotations=_EXCLUSIVE if self.slices > 1 else "",
            service_account=f"serviceAccountName: {json.dumps(account)}" if account else "",
            selectors=f"nodeSelector: {json.dumps(labels)}" if labels else "",
            image=json.dumps(self.image),
            checkpoints=shlex.quote(str(training.workdir / CHECKPOINTS)),
            # Kubernetes looks only at the codes of failures.
            refused=", ".join(str(code) for code in FINAL if code),
            uncounted="|".join(str(code) for code in (*FINAL, STOPPED)),
            script="\n".join([*self.setup, script]),
            secret=f"envFrom:\n- secretRef:\n    name: {json.dumps(secret)}" if secret else "",
            cpus=self.cpus or _CPUS_PER_DEVICE * max(count, 1),
            memory=self.memory or f"{_GIB_PER_DEVICE * max(count, 1)}Gi",
            limits=f"limits:\n  {device}: {count}" if count else "",
            cache=json.dumps(f"{mount}/.cache" if claim else mount),
            volume="runs" if claim else "cache",
            mount=json.dumps(mount),
            source=claimed if claim else "emptyDir: {}",
        )
        return _patched(manifest, self.patch) if self.patch else manifest

    def command(self, path: Path) -> list[str]:
        """Return the command of kubectl, which refuses a JobSet of a name that is taken."""
        return ["kubectl", "create", "-f", str(path)]


def _patched(manifest: str, patch: Path) -> str:
    """Return a manifest with a patch merged into it."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """Writes the lines of scripts as they are."""

    def block(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        style = "|" if "\n" in text else '"' if _UNCLEAR.fullmatch(text) else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)

    Dumper.add_representer(str, block)
    try:
        changes = yaml.safe_load(patch.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"--patch {patch} is no readable YAML: {in_one_line(error)}") from error
    if not isinstance(changes, dict):
        raise UserError(f"--patch {patch} has no fields of a JobSet, such as metadata or spec")
    merged = _merged(yaml.safe_load(manifest), changes, f"--patch {patch}: ")
    return _HEADER + yaml.dump(merged, Dumper=Dumper, sort_keys=False, width=1_000_000)


def _merged(value: object, change: object, place: str) -> object:
    """Return a value of a manifest with a change, as Kubernetes merges strategic patches.

    Mappings are merged, and so are lists of items with names or mount paths. null removes a field.
    """
    if isinstance(change, dict):
        fields = dict(value) if isinstance(value, dict) else {}
        for name, part in change.items():
            fields[name] = _merged(fields.get(name), part, f"{place}{name}.")
        return {name: part for name, part in fields.items() if part is not None}
    if isinstance(value, list) and isinstance(change, list):
        items = {_key(item): item for item in value}
        if None in items:  # such as rules of a policy
            return change
        for item in change:
            if (key := _key(item)) is None:
                raise UserError(f"{place.rstrip('.')} has an item without a name; add its name")
            items[key] = _merged(items.get(key), item, f"{place}{key}.")
        return list(items.values())
    return change


def _key(item: object) -> str | None:
    """Return the name by which Kubernetes merges an item of a list; None if it has none."""
    return item.get("mountPath", item.get("name")) if isinstance(item, dict) else None
