"""The jobs of Slurm, ssh, Cloud TPUs, SkyPilot and Kubernetes."""

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
# Texts such as 1e3, which Kubernetes reads as numbers or booleans, but PyYAML as texts.
_AMBIGUOUS = re.compile(r"[a-zA-Z]|[^a-zA-Z/].*")
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
    """Write a batch job of Slurm, and submit it with sbatch."""

    hosts: int = 1
    """Number of nodes."""
    min_hosts: int | None = None
    """Minimum number of nodes, if fewer than --hosts are up. By default, --hosts."""
    cpus: int | None = None
    """Cores per node. By default, whole nodes with all of their memory."""
    time: str = "24:00:00"
    """Time limit as 90 (minutes), 24:00:00 or 2-12; a job that reaches it is queued again."""
    grace: int = 180
    """Seconds before the time limit at which the run writes a checkpoint and stops."""

    file: ClassVar[str] = "slurm.sh"
    client: ClassVar[str] = "sbatch"
    shares_files: ClassVar[bool] = True

    def check(self, training: job.LaunchedTraining) -> None:
        """Refuse flags that Slurm or the mesh does not accept."""
        super().check(training)
        if self.grace < 1:
            raise UserError(f"--grace {self.grace} is too short; give a number of seconds above 0")
        if not _TIME.fullmatch(self.time):
            raise UserError(
                f"--time {self.time} is not a Slurm time; give minutes, HOURS:MINUTES:SECONDS or "
                "DAYS-HOURS, as in 24:00:00"
            )
        self.check_hosts(training, self.hosts, self.min_hosts)

    def check_queue(self, folder: Path) -> None:
        """Refuse a run whose earlier job is still in Slurm's queue."""
        number_file = folder / _JOB_FILE
        if not number_file.is_file():
            return
        job_number = number_file.read_text("utf-8", "replace").strip()
        command = ["squeue", "--noheader", "--format=%T", f"--jobs={job_number}"]
        try:
            squeue = subprocess.run(command, capture_output=True, text=True, errors="replace")
        except FileNotFoundError:
            return
        if squeue.returncode == 0 and squeue.stdout.strip():  # squeue fails for forgotten jobs
            raise UserError(
                f"job {job_number} of Slurm trains in {folder.parent} "
                f"({squeue.stdout.split()[0]}); wait for it, or end it first: scancel {job_number}"
            )

    def text(self, training: job.LaunchedTraining, path: Path) -> str:
        """Return the batch script, which requeues itself."""
        gpu_options = [f"gpus-per-node={self.gpus}"] if self.gpus else []
        allocation = "--exclusive --mem=0" if self.cpus is None else f"--mincpus={self.cpus}"
        has_all_gpus = self.gpus and self.one_process_per == "host"
        log_path, fewest = path.absolute().with_name("slurm-%j.log"), self.min_hosts or self.hosts
        return self.render(
            training,
            path,
            nodes="-".join(map(str, sorted({fewest, self.hosts}))),
            share=allocation,
            log=shlex.quote(f"{str(log_path.parent).replace('%', '%%')}/{log_path.name}"),
            options="\n".join(f"#SBATCH --{option}" for option in [*gpu_options, *self.options()]),
            devices=f"export JAX_LOCAL_DEVICE_IDS={self.devices[0]}" if has_all_gpus else "",
            processes=len(self.devices),
            record=shlex.quote(str(log_path.with_name("slurm"))),
            exclusion=job.exclusion("slurm_exclusion.sh", training, fewest),
        )

    def command(self, path: Path) -> list[str]:
        """Return the sbatch command, which prints the job number."""
        return ["sbatch", "--parsable", str(path)]

    def report_submission(self, path: Path, answer: str) -> None:
        """Print the job number, and record it for `check_queue`."""
        match = _JOB.search(answer)
        if match is None:
            raise UserError(
                f"sbatch answered {quote(in_one_line(answer))} instead of a job number; see "
                "squeue --me before you try again"
            )
        number = match[1]
        write_whole(path.parent / _JOB_FILE, f"{number}\n".encode())
        print(f"submitted as job {number}; its log: {path.with_name(f'slurm-{number}.log')}")


@dataclass(frozen=True)
class Ssh(job.GpuHosts, job.TrainJob):
    """Write and start a script that trains on hosts with a shared file system, through ssh.

    Each --option is an option of ssh, such as Port=2222.
    """

    hosts: tuple[str, ...] = ()
    """Hosts as NAME or USER@NAME; they also reach each other by these names."""
    min_hosts: int | None = None
    """Minimum number of hosts to continue with, without hosts that hung. By default, all."""

    file: ClassVar[str] = "ssh.sh"
    client: ClassVar[str] = "ssh"
    shares_files: ClassVar[bool] = True
    in_foreground: ClassVar[bool] = True

    def check(self, training: job.LaunchedTraining) -> None:
        """Refuse bad host names, or a number of hosts that does not fit the mesh."""
        super().check(training)
        if not self.hosts:
            raise UserError("there is no host to train on; name some, as in --hosts gpu1 gpu2")
        [(name, count), *_] = Counter(self.hosts).most_common(1)
        if count > 1:
            raise UserError(f"--hosts names {name} {count} times; name each host once")
        for host in self.hosts:
            if not _HOST.fullmatch(host):
                raise UserError(
                    f"--hosts {quote(host)} is not NAME or USER@NAME; ports need --option Port=2222"
                )
        self.check_hosts(training, len(self.hosts), self.min_hosts)

    def text(self, training: job.LaunchedTraining, path: Path) -> str:
        """Return the shell script that trains on all hosts through ssh."""
        train, fewest = self.train_command(training), self.min_hosts or len(self.hosts)
        options = [word for option in self.options() for word in ("-o", option)]
        return self.render(
            training,
            path,
            hosts=shlex.join(self.hosts),
            script=self.script(train, host='"$1"', hosts='"$2"', first_host='"$3"'),
            options=shlex.join(options),
            exclusion=job.exclusion("ssh_exclusion.sh", training, fewest),
        )


@dataclass(frozen=True)
class Tpu(job.TrainJob):
    """Write and start a script that requests a TPU slice and trains on all of its hosts.

    Each --option is a flag of gcloud's queued-resources create, such as spot. Each host runs one
    process, for all of its chips.
    """

    accelerator: str | None = None
    """Type and size of the slice for gcloud, such as v5litepod-16."""
    runtime: str | None = None
    """Runtime version of the hosts for gcloud, such as v2-alpha-tpuv5-lite."""
    zone: str | None = None
    """Zone of the slice."""
    setup: tuple[str, ...] = (
        "python3 -m pip install --quiet --user uv || exit",
        "[[ -d .venv ]] || ~/.local/bin/uv venv --quiet --python 3.12 || exit",
        ". .venv/bin/activate",
        "~/.local/bin/uv pip install --quiet -e '.[train,tpu,gcs]' || exit",
    )
    """Shell lines that each host runs before training, in a copy of this directory. The hosts have
    Python 3.10, so uv installs a newer version."""

    file: ClassVar[str] = "tpu.sh"
    client: ClassVar[str] = "gcloud"
    name_pattern: ClassVar[str] = r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?"
    name_rule: ClassVar[str] = "of lowercase letters, digits and hyphens"
    in_foreground: ClassVar[bool] = True

    def check(self, training: job.LaunchedTraining) -> None:
        """Refuse a name that gcloud does not accept, or missing flags."""
        super().check(training)
        for name in ("accelerator", "runtime", "zone"):
            if getattr(self, name) is None:
                raise UserError(f"a TPU slice needs --{name}; see t2t-jax launch tpu --help")

    def text(self, training: job.LaunchedTraining, path: Path) -> str:
        """Return the shell script that requests a slice and trains on it."""
        options = [f"--{option}" for option in self.options()]
        return self.render(
            training,
            path,
            zone=shlex.quote(str(self.zone)),
            accelerator=shlex.quote(str(self.accelerator)),
            runtime=shlex.quote(str(self.runtime)),
            options=shlex.join(options),
        )


@dataclass(frozen=True)
class SkyPilot(job.GpuHosts, job.TrainJob):
    """Write a SkyPilot task, and start it with sky as a managed job.

    Each --option is a resource of the task, such as infra=aws/us-east-1 or use_spot=true.
    """

    hosts: int = 1
    """Number of nodes."""
    gpus: int = 0
    """GPUs per host, of the type --gpu; 0 trains on the CPU."""
    gpu: str = "H100"
    """SkyPilot's name of the GPU type."""
    setup: tuple[str, ...] = ("pip install -e '.[train,cuda13,gcs,s3]'",)
    """Shell lines that each host runs once, in a copy of the current directory."""

    file: ClassVar[str] = "skypilot.yaml"
    client: ClassVar[str] = "sky"

    def check(self, training: job.LaunchedTraining) -> None:
        """Refuse a run that does not fit the task's hosts."""
        super().check(training)
        self.check_hosts(training, self.hosts, None)

    def text(self, training: job.LaunchedTraining, path: Path) -> str:
        """Return the YAML text of the SkyPilot task."""
        resources = [("accelerators", json.dumps(f"{self.gpu}:{self.gpus}"))] if self.gpus else []
        resources += map(job.split_option, self.option)
        return self.render(
            training,
            path,
            name=json.dumps(self.title(training)),
            resources="\n".join(f"{name}: {value}" for name, value in resources),
            script=self.script(
                self.train_command(training),
                host="$SKYPILOT_NODE_RANK",
                hosts=str(self.hosts),
                first_host='$(head -n1 <<<"$SKYPILOT_NODE_IPS")',
            ),
        )

    def command(self, path: Path) -> list[str]:
        """Return the sky command that submits the task without questions and log output."""
        return ["sky", "jobs", "launch", "--yes", "--detach-run", str(path)]


# A JobSet and not a Job: when one pod fails, all pods restart together, and only a JobSet counts
# that as one restart. GKE also requires a JobSet for several TPU slices. Each pod gets its process
# index as a flag, so it needs neither the package `kubernetes` nor access rights.
@dataclass(frozen=True)
class Kubernetes(job.GpuHosts, job.TrainJob):
    """Write a JobSet, and create it with kubectl in the current namespace.

    Each --option is a label that nodes need, such as
    cloud.google.com/gke-accelerator=nvidia-h100-80gb.
    """

    image: str | None = None
    """Image of the repository's Dockerfile, built with the extras that training needs."""
    hosts: int = 1
    """Number of pods, each on a separate host; with --tpu, pods per slice."""
    tpu: str | None = None
    """TPU type and topology of a slice in GKE's terms, such as tpu-v6e-slice:4x4."""
    slices: int = 1
    """Number of TPU slices."""
    claim: str | None = None
    """Volume claim with the run directory, unless the run is in a bucket."""
    mount: Path = Path("/runs")
    """Mount path of the volume in the pods."""
    service_account: str | None = None
    """Service account of the pods, such as one that may write to the bucket."""
    secret: str | None = None
    """Secret whose keys become environment variables, such as AWS_ACCESS_KEY_ID."""
    grace: int = 180
    """Seconds that a stopped pod has for its last checkpoint."""
    cpus: int = 0
    """CPUs that a pod requests; 0 means 2 per device."""
    memory: str | None = None
    """Memory that a pod requests, such as 64Gi. By default, 8 GiB per device."""
    patch: Path | None = None
    """YAML file to merge into the JobSet: tolerations, labels, a queue, network devices."""

    file: ClassVar[str] = "jobset.yaml"
    client: ClassVar[str] = "kubectl"
    name_pattern: ClassVar[str] = r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?"
    name_rule: ClassVar[str] = "of at most 40 lowercase letters, digits and hyphens"

    def check(self, training: job.LaunchedTraining) -> None:
        """Refuse a name, run directory, TPU slice or resource that Kubernetes does not accept."""
        super().check(training)
        if self.image is None:
            raise UserError("a pod needs an image; name one, as in --image registry/t2t-jax:1")
        if not isinstance(training.workdir, BucketPath):
            if self.claim is None:
                raise UserError(
                    f"pods cannot see {training.workdir}; pass a bucket as --workdir, or the "
                    "volume claim that has the directory as --claim"
                )
            if not training.workdir.is_relative_to(self.mount):
                raise UserError(
                    f"--workdir {training.workdir} is not below --mount {self.mount}, where pods "
                    f"see the volume of --claim {self.claim}"
                )
        if self.memory is not None and not _MEMORY.fullmatch(self.memory):
            raise UserError(f"--memory {self.memory} is not an amount of memory; write it as 64Gi")
        if self.tpu is None and self.slices != 1:
            raise UserError(f"--slices {self.slices} is only for TPUs; give their type with --tpu")
        if self.tpu is not None:
            job.check_mesh_fits(training, [(self.slices * self.hosts, self._chips(self.tpu))])
        else:
            self.check_hosts(training, self.hosts, None)

    def _chips(self, tpu: str) -> int:
        match = _TPU.fullmatch(tpu)
        if not match:
            raise UserError(f"--tpu {tpu} is not KIND:TOPOLOGY, as in tpu-v6e-slice:4x4")
        if self.gpus or self.one_process_per == "gpu":
            raise UserError(
                "--tpu is for pods without GPUs; leave --gpus and --one-process-per out"
            )
        chips = math.prod(map(int, match[2].split("x")))
        if self.hosts < 1 or self.slices < 1 or chips % self.hosts or chips // self.hosts > 8:
            raise UserError(
                f"the {chips} chips of --tpu {tpu} do not fit on {self.hosts} hosts of at most 8 "
                f"chips in each of {self.slices} slices; GKE says how many hosts a slice has"
            )
        return chips // self.hosts

    def text(self, training: job.LaunchedTraining, path: Path) -> str:
        """Return the YAML manifest of the JobSet."""
        from t2t_jax.workdir import CHECKPOINTS

        name, train = self.title(training), self.train_command(training)
        labels = dict(map(job.split_option, self.option))
        device_resource, num_devices = "nvidia.com/gpu", self.gpus
        if self.tpu is not None:
            kind, _, topology = self.tpu.partition(":")
            labels |= {
                "cloud.google.com/gke-tpu-accelerator": kind,
                "cloud.google.com/gke-tpu-topology": topology,
            }
            device_resource, num_devices = "google.com/tpu", self._chips(self.tpu)
            # GKE passes the addresses of all pods and slices in TPU_* and MEGASCALE_* variables.
            script = _ONE_PROCESS.format(train=train)
        else:
            first_host = f"{name}-train-0-0.{name}"
            script = self.script(
                train, host="$JOB_COMPLETION_INDEX", hosts=str(self.hosts), first_host=first_host
            )
        account, claim, secret = self.service_account, self.claim, self.secret
        mount = str(self.mount) if claim else "/cache"
        volume_claim = f"persistentVolumeClaim:\n  claimName: {json.dumps(claim)}"
        manifest = self.render(
            training,
            path,
            annotations=_EXCLUSIVE if self.slices > 1 else "",
            service_account=f"serviceAccountName: {json.dumps(account)}" if account else "",
            selectors=f"nodeSelector: {json.dumps(labels)}" if labels else "",
            image=json.dumps(self.image),
            checkpoints=shlex.quote(str(training.workdir / CHECKPOINTS)),
            # Kubernetes evaluates only the exit codes of failures, so 0 is left out.
            refused=", ".join(str(code) for code in FINAL if code),
            uncounted="|".join(str(code) for code in (*FINAL, STOPPED)),
            script="\n".join([*self.setup, script]),
            secret=f"envFrom:\n- secretRef:\n    name: {json.dumps(secret)}" if secret else "",
            cpus=self.cpus or _CPUS_PER_DEVICE * max(num_devices, 1),
            memory=self.memory or f"{_GIB_PER_DEVICE * max(num_devices, 1)}Gi",
            limits=f"limits:\n  {device_resource}: {num_devices}" if num_devices else "",
            cache=json.dumps(f"{mount}/.cache" if claim else mount),
            volume="runs" if claim else "cache",
            mount=json.dumps(mount),
            source=volume_claim if claim else "emptyDir: {}",
        )
        return _merge_patch_file(manifest, self.patch) if self.patch else manifest

    def command(self, path: Path) -> list[str]:
        """Return the kubectl command, which refuses a JobSet if its name is already in use."""
        return ["kubectl", "create", "-f", str(path)]


def _merge_patch_file(manifest: str, patch: Path) -> str:
    import yaml

    class Dumper(yaml.SafeDumper):
        """Write YAML texts of several lines as literal blocks."""

    def block(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        style = "|" if "\n" in text else '"' if _AMBIGUOUS.fullmatch(text) else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)

    Dumper.add_representer(str, block)
    try:
        changes = yaml.safe_load(patch.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"--patch {patch} is not readable YAML: {in_one_line(error)}") from error
    if not isinstance(changes, dict):
        raise UserError(f"--patch {patch} has no fields of a JobSet, such as metadata or spec")
    content = _merge(yaml.safe_load(manifest), changes, f"--patch {patch}: ")
    return _HEADER + yaml.dump(content, Dumper=Dumper, sort_keys=False, width=1_000_000)


def _merge(value: object, change: object, prefix: str) -> object:
    """Merge a change into a part of a manifest, like a strategic merge patch of Kubernetes.

    Mappings are merged, and so are lists of items with names or mount paths. null removes a field.
    Error messages begin with `prefix`.
    """
    if isinstance(change, dict):
        fields = dict(value) if isinstance(value, dict) else {}
        for name, part in change.items():
            fields[name] = _merge(fields.get(name), part, f"{prefix}{name}.")
        return {name: part for name, part in fields.items() if part is not None}
    if isinstance(value, list) and isinstance(change, list):
        items = {_merge_key(item): item for item in value}
        if None in items:  # such as rules of a policy
            return change
        for item in change:
            if (key := _merge_key(item)) is None:
                raise UserError(f"{prefix.rstrip('.')} has an item without a name; add its name")
            items[key] = _merge(items.get(key), item, f"{prefix}{key}.")
        return list(items.values())
    return change


def _merge_key(item: object) -> str | None:
    return item.get("mountPath", item.get("name")) if isinstance(item, dict) else None
