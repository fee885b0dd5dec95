"""Jobs of schedulers: what is written is read by their own schemas, by shells and by linters."""

import fcntl
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml

from t2t_jax import Config, UserError
from t2t_jax.extras.launch.launch_command import SCHEDULERS, launch_command
from t2t_jax.extras.launch.schedulers import Ssh, Tpu
from t2t_jax.system.exit_codes import FINAL
from t2t_jax.workdir import check_workdir
from tests.programs import ROOT, run_program, wait_until
from tests.refusals import refused
from tests.selection import thorough_after

GOLDENS = ROOT / "tests/goldens"
CONFIG = "--config configs/quickstart.py"
FORMS = {
    "slurm": "slurm --hosts 4 --min-hosts 2 --gpus 8 --option partition=gpu --setup true",
    "slurm, processes": "slurm --hosts 2 --cpus 8 --gpus 2 --one-process-per gpu",
    "ssh": "ssh --hosts me@a b --gpus 2 --option Port=2222 --setup true",
    "ssh, processes": "ssh --hosts a b c --gpus 2 --one-process-per gpu",
    "tpu": "tpu --accelerator v5litepod-16 --runtime v2-alpha-tpuv5-lite --zone z --option spot",
    "kubernetes": "kubernetes --image i:1 --claim c --hosts 2 --gpus 8 --option kind=h100",
    "kubernetes, processes": "kubernetes --image i:1 --gpus 2 --one-process-per gpu --claim c",
    "kubernetes, slices": "kubernetes --image i:1 --hosts 4 --tpu tpu-v6e-slice:4x4 --slices 2 "
    "--service-account s --secret k --claim c",
    "skypilot": "skypilot --hosts 2 --gpus 8 --option infra=aws use_spot=true",
    "skypilot, processes": "skypilot --gpus 2 --gpu A100 --one-process-per gpu",
}


def _run(form, workdir="/runs/big", train=""):
    """Launch a training, and return the exit code."""
    arguments = [*shlex.split(form), *f"-- train {CONFIG} --workdir {workdir} {train}".split()]
    return launch_command(arguments).run()


@pytest.fixture
def printed(capsys):
    """A function that returns the text of a job."""

    def printed(form, *arguments):
        assert _run(f"{FORMS.get(form, form)} --print", *arguments) == 0
        return capsys.readouterr().out

    return printed


def _scripts(name, text):
    """The shell scripts of a job."""
    if text.startswith("#!"):
        return [text]
    job = yaml.safe_load(text)
    if name.startswith("skypilot"):
        return [job["setup"], job["run"]]
    [pod] = job["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"]
    assert pod["command"][:2] == ["bash", "-c"]
    return pod["command"][2:]


@pytest.mark.parametrize("form", FORMS)
def test_every_script_is_one_for_bash_and_its_linter(form, printed):
    for script in _scripts(form, printed(form)):
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)
        if shutil.which("shellcheck"):
            check = ["shellcheck", "--shell=bash", "--severity=warning", "-"]
            found = subprocess.run(check, input=script, text=True, capture_output=True, check=False)
            assert found.returncode == 0, found.stdout


@pytest.mark.parametrize("form", ["slurm", "ssh"])
def test_a_run_in_a_bucket_has_no_file_of_hosts_that_hung(form, printed):
    assert "/runs/big/hangs/hosts" in printed(form)
    in_bucket = printed(form, "gs://bucket/big")
    assert "hangs/hosts" not in in_bucket
    assert "gcloud storage ls gs://bucket/big/checkpoints" in in_bucket


@pytest.mark.parametrize("time", ["90", "90:00", "24:00:00", "2-12", "2-12:30", "2-12:30:00"])
def test_a_time_is_one_that_slurm_takes(time, printed):
    assert f"#SBATCH --time={time}\n" in printed(f"slurm --time {time}")


KUBERNETES = [form for form in FORMS if form.startswith("kubernetes")]


@pytest.mark.parametrize("form", KUBERNETES)
def test_a_jobset_is_one_by_the_published_schemas(form, printed):
    _check_jobset(yaml.safe_load(printed(form)))


def _check_jobset(manifest):
    """Validate by the schemas of the JobSet's controller and of Kubernetes."""
    jsonschema.validate(manifest, json.loads((GOLDENS / "jobset_schema.json").read_text()))
    validate = pytest.importorskip("kubernetes_validate").validate
    [replicated] = manifest["spec"]["replicatedJobs"]
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "big"}}
    validate(job | replicated["template"], "1.31", strict=True)
    # Fields that no schema knows would have been refused.
    replicated["template"]["spec"]["template"]["spec"]["gpus"] = 8
    with pytest.raises(Exception, match="gpus"):
        validate(job | replicated["template"], "1.31", strict=True)


@pytest.mark.parametrize(
    ("code", "is_disrupted", "action"),
    [
        (2, False, "FailJobSet"),
        (76, False, "FailJobSet"),  # diverged
        (130, True, "FailJobSet"),
        (143, False, "RestartJobSetAndIgnoreMaxRestarts"),
        (143, True, "RestartJobSetAndIgnoreMaxRestarts"),
        (137, True, "RestartJobSetAndIgnoreMaxRestarts"),  # preempted, and killed after the grace
        (137, False, "RestartJobSet"),  # out of memory
        (75, False, "RestartJobSet"),
        (74, False, "RestartJobSet"),
        (1, False, "RestartJobSet"),
    ],
)
def test_only_failures_that_are_no_disruptions_use_up_retries(code, is_disrupted, action, printed):
    spec = yaml.safe_load(printed("kubernetes"))["spec"]
    [replicated] = spec["replicatedJobs"]
    assert _restart_action(spec, replicated["template"]["spec"], code, is_disrupted) == action


def _restart_action(jobset, job, code, is_disrupted):
    """What a JobSet does after a pod failed, as the controllers of Jobs and JobSets decide."""
    reason, message = "BackoffLimitExceeded", "Job has reached the specified backoff limit"
    for index, rule in enumerate(job["podFailurePolicy"]["rules"]):
        if codes := rule.get("onExitCodes"):
            cause = f"Container train for pod n/p failed with exit code {code}"
            is_match = code in codes["values"]
        else:
            cause = "Pod n/p has condition DisruptionTarget"
            is_match = is_disrupted
            assert rule["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
        if is_match:
            reason = "PodFailurePolicy"
            message = f"{cause} matching {rule['action']} rule at index {index}"
            break
    for rule in jobset["failurePolicy"]["rules"]:
        patterns = rule.get("onJobFailureMessagePatterns", [""])
        has_match = any(re.search(pattern, message) for pattern in patterns)
        if reason in rule["onJobFailureReasons"] and has_match:
            return rule["action"]
    return "RestartJobSet"


_PATCH = """
metadata: {labels: {kueue.x-k8s.io/queue-name: gpus}}
spec:
  replicatedJobs:
  - name: train
    template:
      spec:
        template:
          spec:
            priorityClassName: research
            securityContext: {fsGroupChangePolicy: null}
            tolerations: [{key: nvidia.com/gpu, operator: Exists}]
            containers:
            - name: train
              securityContext: {capabilities: {add: [IPC_LOCK]}}
              env: [{name: NCCL_DEBUG, value: INFO}]
              resources: {limits: {rdma/ib: 8}}
            volumes:
            - {name: shared-memory, emptyDir: {sizeLimit: 64Gi}}
"""


def _pod(manifest):
    [replicated] = manifest["spec"]["replicatedJobs"]
    return replicated["template"]["spec"]["template"]["spec"]


def test_a_patch_is_merged_as_kubernetes_merges_it(printed, tmp_path):
    patch = tmp_path / "patch.yaml"
    patch.write_text(_PATCH)
    expected = yaml.safe_load(printed("kubernetes"))
    expected["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "gpus"}
    pod = _pod(expected)
    pod["priorityClassName"] = "research"
    pod["tolerations"] = [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    del pod["securityContext"]["fsGroupChangePolicy"]
    pod["volumes"][0]["emptyDir"]["sizeLimit"] = "64Gi"
    [container] = pod["containers"]
    container["securityContext"] = {"capabilities": {"add": ["IPC_LOCK"]}}
    container["env"].append({"name": "NCCL_DEBUG", "value": "INFO"})
    container["resources"]["limits"]["rdma/ib"] = 8
    patched = yaml.safe_load(printed(f"{FORMS['kubernetes']} --patch {patch}"))
    assert patched == expected
    _check_jobset(patched)


_NAMES = {"True", "null", "yes", "1e3", "1_000", "0o17", "y"}
_NAMED = "--image 1e3 --claim True --service-account null --secret 0o17 --option 1_000=y yes=1e3"


@pytest.mark.parametrize(
    "form",
    [
        f"kubernetes --name y {_NAMED} --mount /",
        f"kubernetes --name y {_NAMED} --mount / --patch patch.yaml",
        "skypilot --name 1e3 --gpus 1 --gpu True --setup '  true' false",
    ],
)
def test_names_stay_texts_whichever_version_of_yaml_reads_them(
    form, printed, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path("patch.yaml").write_text("metadata: {labels: {'1e3': 'null'}}")
    text = printed(form)
    assert yaml.safe_load(text)
    scalars = [token for token in yaml.scan(text) if isinstance(token, yaml.ScalarToken)]
    is_quoted = {scalar.value: not scalar.plain for scalar in scalars if scalar.value in _NAMES}
    assert is_quoted
    assert all(is_quoted.values())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "is not readable YAML: .*No such file"),
        ("a: [", "is not readable YAML: "),
        ("- a", "has no fields of a JobSet"),
        ("spec: {replicatedJobs: [{replicas: 2}]}", "spec.replicatedJobs has an item without a na"),
    ],
)
def test_a_patch_that_cannot_be_merged_is_refused_in_a_line(content, message, printed, tmp_path):
    patch = tmp_path / "patch.yaml"
    if content is not None:
        patch.write_text(content)
    with refused(match=message):
        printed(f"{FORMS['kubernetes']} --patch {patch}")


@pytest.mark.parametrize(
    ("form", "workdir", "place", "volume"),
    [
        ("kubernetes", "/runs/big", "/runs/.cache", {"name": "runs", "mountPath": "/runs"}),
        ("kubernetes --image i", "gs://b/big", "/cache", {"name": "cache", "mountPath": "/cache"}),
    ],
)
def test_caches_lie_on_a_volume(form, workdir, place, volume, printed):
    pod = _pod(yaml.safe_load(printed(form, workdir)))
    [container] = pod["containers"]
    assert container["env"] == [{"name": "XDG_CACHE_HOME", "value": place}]
    assert volume in container["volumeMounts"]
    assert volume["name"] in [each["name"] for each in pod["volumes"]]


def test_several_slices_are_what_gke_knows_them_by(printed):
    manifest = yaml.safe_load(printed("kubernetes, slices"))
    assert list(manifest["metadata"]["annotations"].values()) == ["cloud.google.com/gke-nodepool"]
    [slices] = manifest["spec"]["replicatedJobs"]
    pods = slices["template"]["spec"]
    pod = pods["template"]["spec"]
    assert (slices["replicas"], pods["completions"], pods["parallelism"]) == (2, 4, 4)
    assert pod["containers"][0]["resources"] == {
        "requests": {"cpu": 8, "memory": "32Gi"},
        "limits": {"google.com/tpu": 4},
    }
    assert pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"] == "4x4"
    assert "--coordinator" not in pod["containers"][0]["command"][2]  # GKE tells them


@pytest.mark.slow
@pytest.mark.parametrize("form", [form for form in FORMS if form.startswith("skypilot")])
def test_a_task_is_one_for_skypilot_itself(form, printed, tmp_path):
    sky = pytest.importorskip("sky", reason="SkyPilot is not installed: pip install skypilot")
    file = tmp_path / "task.yaml"
    file.write_text(printed(form, "gs://bucket/big"))
    task = sky.Task.from_yaml(str(file))
    [resources, *_] = task.resources
    assert (task.num_nodes, resources.accelerators) in [(2, {"H100": 8}), (1, {"A100": 2})]
    assert resources.job_recovery["max_restarts_on_errors"] == 20


@pytest.fixture
def shims(tmp_path, monkeypatch):
    """A folder with programs that stand for those of a cluster; `add` writes one."""
    folder = tmp_path / "shims"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("T", str(tmp_path))

    def add(name, body):
        (folder / name).write_text(f"#!/bin/bash\n{body}\n")
        (folder / name).chmod(0o755)

    add("sleep", "exec /bin/sleep 0.02")
    return add


_PROGRAM = """
[[ $2 == --config ]] || exit 9
for ((i = 1; i <= $#; i++)); do
    [[ ${!i} == --process-id ]] && n=$((i + 1)) && n=${!n}
done
echo "$JAX_LOCAL_DEVICE_IDS ${*:6}" >> "$T/started-$n"
"""
"""A program in place of t2t-jax, which writes down which devices and which place it was given."""


def _started(folder):
    return [file.read_text().splitlines() for file in sorted(folder.glob("started-*"))]


def _bash(script, **environment):
    """Run a shell script on a host of a job, and return its exit code."""
    return run_program("bash", "-c", script, cwd=Path.cwd(), **environment).returncode


_PLACE = "--coordinator {} --num-processes {} --process-id {}"


@pytest.mark.parametrize("per", ["host", "gpu"])
def test_every_pod_and_node_is_told_its_place(per, printed, shims, tmp_path):
    shims("t2t-jax", _PROGRAM)
    pods = f"--hosts 2 --gpus 2 --one-process-per {per}"
    first, devices = "big-train-0-0.big:8476", ["0,1"] if per == "host" else ["0", "1"]
    [pod] = _scripts("kubernetes", printed(f"kubernetes --image i:1 --claim c {pods}"))
    for host in ("0", "1"):
        assert _bash(pod, JOB_COMPLETION_INDEX=host) == 0
    count = 2 * len(devices)
    told = [[f"{devices[n % len(devices)]} {_PLACE.format(first, count, n)}"] for n in range(count)]
    assert _started(tmp_path) == told
    [_, node] = _scripts("skypilot", printed(f"skypilot {pods}"))
    for host in ("0", "1"):
        nodes = "10.0.0.7\n10.0.0.8"
        assert _bash(node, SKYPILOT_NODE_RANK=host, SKYPILOT_NODE_IPS=nodes) == 0
    assert [lines[1] for lines in _started(tmp_path)] == [
        line.replace(first, "10.0.0.7:8476") for [line] in told
    ]


def test_the_processes_of_a_host_end_together(printed, shims):
    shims(
        "t2t-jax",
        f'{_PROGRAM}\n[[ $n == 1 ]] && exit 75\ntrap "exit 143" TERM\nread -rt 60 <> <(:)',
    )
    [pod] = _scripts("kubernetes", printed("kubernetes, processes"))
    assert _bash(pod, JOB_COMPLETION_INDEX="0") == 75


@pytest.mark.parametrize("form", ["kubernetes, processes", "kubernetes, slices"])
@pytest.mark.parametrize(
    ("code", "has_checkpoint", "expected"),
    [(75, False, 75), (75, True, 143), (137, True, 143), (76, True, 76), (0, True, 0)],
)
def test_a_pod_that_fails_after_a_new_checkpoint_uses_up_no_retry(
    form, code, has_checkpoint, expected, printed, shims, tmp_path
):
    run = tmp_path / "big"
    (run / "checkpoints/600").mkdir(parents=True)
    (run / "checkpoints/700.tmp").mkdir()
    shims("python", f'PYTHONPATH={ROOT} exec {sys.executable} "$@"')
    save = f"mkdir -p {run}/checkpoints/1200; " if has_checkpoint else ""
    shims("t2t-jax", f"{save}exit {code}")
    [pod] = _scripts(form, printed(f"{FORMS[form]} --mount {tmp_path}", run))
    assert _bash(pod, JOB_COMPLETION_INDEX="0") == expected


@pytest.mark.parametrize("form", ["kubernetes, processes", "kubernetes, slices"])
def test_a_pod_that_is_stopped_waits_for_the_last_checkpoint(form, printed, shims, tmp_path):
    shims(
        "t2t-jax",
        'trap "sleep 1; touch $T/saved; exit 143" TERM; touch "$T/up"; read -rt 60 <> <(:)',
    )
    [pod] = _scripts(form, printed(form))
    place = {**os.environ, "JOB_COMPLETION_INDEX": "0"}
    with subprocess.Popen(["bash", "-c", pod], env=place) as process:
        wait_until(lambda: (tmp_path / "up").exists())
        process.terminate()
        assert process.wait(30) == 143
    assert (tmp_path / "saved").exists()


_SSH = """
[[ $1 == -o && $3 == -o && $5 == -o && $6 == "ProxyCommand=nc %h 22" ]] || exit 9
echo "$7" >> "$T/hosts"
exec bash -c "$8"
"""


def _launch_ssh(tmp_path, monkeypatch, body, hosts="me@a b", flags=""):
    monkeypatch.chdir(ROOT)
    program = tmp_path / "program"
    program.write_text(f"#!/bin/bash\n{_PROGRAM}\n{body}\n")
    program.chmod(0o755)
    ssh = f"ssh --hosts {hosts} --option 'ProxyCommand=nc %h 22' --program {program} {flags}"
    return _in_foreground(monkeypatch, ssh, tmp_path / "run")


def _in_foreground(monkeypatch, *arguments):
    """Launch a job whose client takes the place of the program, and return its exit code."""

    def execvp(_, command):
        raise SystemExit(subprocess.run(command, check=False).returncode)

    monkeypatch.setattr(os, "execvp", execvp)
    try:
        return _run(*arguments)
    except SystemExit as end:
        return end.code


def test_hosts_of_ssh_start_again_without_the_one_that_hung(shims, tmp_path, monkeypatch):
    shims("ssh", _SSH)
    body = 'again=$(wc -l < "$T/started-$n")\n'
    body += '((again == 1)) && exit 143\n((again == 2)) && mkdir -p "$T/run/hangs" && '
    body += 'echo a.example.org > "$T/run/hangs/hosts" && exit 75\nexit 0'
    assert _launch_ssh(tmp_path, monkeypatch, body, flags="--min-hosts 1") == 0
    assert sorted((tmp_path / "hosts").read_text().split()) == ["b", "b", "b", "me@a", "me@a"]
    told = [_PLACE.format(first, count, 0) for first, count in (("a:8476", 2), ("b:8476", 1))]
    assert _started(tmp_path)[0] == [f"0 {told[0]}", f"0 {told[0]}", f"0 {told[1]}"]


_ENDS = [(code, 1) for code in FINAL if code] + [(code, 3) for code in (1, 74, 75, 134, 137, 143)]


@pytest.mark.parametrize(("code", "starts"), thorough_after(4, _ENDS, unpacked=True))
def test_what_cannot_go_on_is_not_started_for_ever(code, starts, shims, tmp_path, monkeypatch):
    shims("ssh", _SSH)
    assert _launch_ssh(tmp_path, monkeypatch, f"exit {code}", flags="--retries 2") == code
    assert sorted((tmp_path / "hosts").read_text().split()) == ["b"] * starts + ["me@a"] * starts


def test_restarts_that_bring_a_new_checkpoint_do_not_count(shims, tmp_path, monkeypatch):
    shims("ssh", _SSH)
    body = 'again=$(wc -l < "$T/started-$n")\nmkdir -p "$T/run/checkpoints/$again"\n'
    body += "((again >= 4)) && exit 0\nexit 75"
    assert _launch_ssh(tmp_path, monkeypatch, body, flags="--retries 1") == 0


@pytest.mark.parametrize(
    ("codes", "code"), [("75 137", 0), ("137 75", 0), ("2 143", 2), ("75 2", 2)]
)
def test_the_order_of_hosts_does_not_decide(codes, code, shims, tmp_path, monkeypatch):
    shims("ssh", _SSH)
    body = f'trap "" TERM\ncodes=({codes})\n(($(wc -l < "$T/started-$n") >= 2)) && exit 0\n'
    body += "until [[ -e $T/started-0 && -e $T/started-1 ]]; do read -rt 0.1 <> <(:); done\n"
    assert _launch_ssh(tmp_path, monkeypatch, f'{body}exit "${{codes[n]}}"') == code


def test_a_host_that_ends_for_good_stops_the_others(shims, tmp_path, monkeypatch):
    shims("ssh", _SSH)
    body = '((n == 1)) && exit 2\ntrap "touch $T/stopped-$n; exit 143" TERM\n'
    body += "while :; do read -rt 0.1 <> <(:); done"
    assert _launch_ssh(tmp_path, monkeypatch, body) == 2
    assert (tmp_path / "stopped-0").exists()


def test_a_slurm_job_is_queued_again_until_restarts_bring_no_checkpoint(
    shims, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "run"
    shims("sbatch", "echo 7")
    shims("srun", 'exec "${@: -5}"')
    shims("scontrol", 'echo "$1" >> "$T/scontrol"')
    shims("t2t-jax", "exit 137")
    assert _run("slurm --retries 2 --program t2t-jax", run) == 0
    for restarts in range(5):
        if restarts < 3:
            (run / "checkpoints" / str(restarts)).mkdir(parents=True)
        job = {"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": str(restarts)}
        assert _bash((run / "launch/slurm.sh").read_text(), **job) == 137
    assert (tmp_path / "scontrol").read_text().split() == ["requeue"] * 4


def test_a_slurm_task_outlives_the_request_of_a_profile(shims, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shims("sbatch", "echo 7")
    shims("srun", 'exec "${@: -5}"')
    shims("t2t-jax", "kill -USR1 $PPID")  # scancel sends it to every process of the task
    assert _run("slurm --program t2t-jax", tmp_path / "run") == 0
    assert _bash((tmp_path / "run/launch/slurm.sh").read_text(), SLURM_JOB_ID="7") == 0


@pytest.mark.parametrize("signal", [signal.SIGTERM, signal.SIGKILL])
def test_the_hosts_stop_when_the_script_does(signal, shims, tmp_path, monkeypatch):
    shims("ssh", _SSH)
    monkeypatch.setattr(Ssh, "submit", lambda *_: 0)  # it is started below, and ended
    body = 'trap "touch $T/stopped-$n; exit 143" TERM\nwhile :; do read -rt 0.1 <> <(:); done'
    assert _launch_ssh(tmp_path, monkeypatch, body) == 0
    script = subprocess.Popen(["bash", str(tmp_path / "run/launch/ssh.sh")])
    wait_until(lambda: len(_started(tmp_path)) == 2)
    script.send_signal(signal)
    wait_until(lambda: len(list(tmp_path.glob("stopped-*"))) == 2)
    assert script.wait(30) == (143 if signal == signal.SIGTERM else -9)
    assert [len(lines) for lines in _started(tmp_path)] == [1, 1]


@pytest.mark.thorough
def test_a_start_waits_for_the_training_of_a_lost_connection(shims, tmp_path, monkeypatch):
    lost = '[[ -e $T/hosts ]] || { bash -c "$8" < <(/bin/sleep 1) & echo >> "$T/hosts"; exit 255; }'
    shims("ssh", f"{lost}\n{_SSH}")
    body = '(($(wc -l < "$T/started-0") == 2)) && echo second >> "$T/events" && exit 0\n'
    body += 'trap "/bin/sleep 1; echo saved >> $T/events; exit 143" TERM\n'
    body += "while :; do read -rt 0.1 <> <(:); done"
    assert _launch_ssh(tmp_path, monkeypatch, body, hosts="a") == 0
    assert (tmp_path / "events").read_text().split() == ["saved", "second"]


_GCLOUD = """
echo "${*:3:2}" >> "$T/gcloud"
case "${*:3:2}" in
    "queued-resources create") echo ACTIVE > "$T/state" ;;
    "queued-resources describe")
        if [[ $(wc -l < "$T/gcloud") -le 2 ]]; then
            echo "ERROR: the network is away" >&2 && exit 1
        fi
        cat "$T/state" 2>&- || { echo "ERROR: NOT_FOUND: Resource" >&2 && exit 1; }
        ;;
    "queued-resources delete") rm "$T/state" ;;
    "tpu-vm describe") printf '10.0.0.%d\\n' 0 1 ;;
    "tpu-vm scp") mkdir -p "$T"/host-{0,1} && cp "$5" "$T/host-0" && cp "$5" "$T/host-1" ;;
    "tpu-vm ssh")
        for host in "$T"/host-*; do
            if [[ "$*" == *--worker=all* || "$*" == *--worker=${host: -1}* ]]; then
                cd "$host" && HOME=$host $CONNECTION bash -c "${*: -1}" || exit 255
            fi
        done
        ;;
esac
"""


@pytest.fixture
def launch_tpu(shims, tmp_path, monkeypatch):
    """A function that trains by a program on two hosts, from a clone with one tracked file."""
    shims("gcloud", _GCLOUD)
    # Without credentials, Google's library waits for its metadata server for most of a minute.
    monkeypatch.setattr(
        "t2t_jax.extras.launch.launch_command.LaunchCommand._sees_run", lambda self: False
    )
    clone = tmp_path / "clone"
    (clone / ".venv").mkdir(parents=True)
    (clone / "tracked").touch()
    (clone / "untracked").touch()
    monkeypatch.chdir(clone)
    subprocess.run(["git", "init", "--quiet"], check=True)
    subprocess.run(["git", "add", "tracked"], check=True)

    def launch(body):
        shims("t2t-jax", f"echo >> ~/started; n=$(wc -l < ~/started); host=${{HOME: -1}}\n{body}")
        flags = "--accelerator v5litepod-16 --runtime r --zone z --option spot --setup true"
        code = _in_foreground(monkeypatch, f"tpu {flags}", "gs://bucket/big")
        return code, [len(file.read_text()) for file in sorted(tmp_path.glob("host-*/started"))]

    return launch


def test_a_slice_that_is_taken_away_is_asked_for_again(launch_tpu, tmp_path, capfd):
    (tmp_path / "host-0/t2t_jax").mkdir(parents=True)
    (tmp_path / "host-0/t2t_jax/stale").touch()
    end = '((n == 1)) && exit 143\n((n == 2)) && echo SUSPENDED > "$T/state" && exit 75\nexit 0'
    assert launch_tpu(end) == (0, [3, 3])
    asked = (tmp_path / "gcloud").read_text().splitlines()
    assert [line for line in asked if line.split()[-1] in ("create", "delete", "scp")] == [
        *("queued-resources create", "tpu-vm scp", "tpu-vm scp"),
        *("queued-resources delete", "queued-resources create", "tpu-vm scp"),
    ]
    assert [path.name for path in (tmp_path / "host-0/t2t_jax").iterdir()] == ["tracked"]
    told = capfd.readouterr().err
    assert "ERROR: the network is away" in told
    assert "waiting for the queued resource big to be ACTIVE: NONE" in told


@pytest.mark.thorough
def test_a_training_on_tpus_outlives_a_lost_connection(launch_tpu, monkeypatch, capfd):
    monkeypatch.setenv("CONNECTION", "timeout 1")
    assert launch_tpu("/bin/sleep 2.5") == (0, [1, 1])
    assert "the connection to host 1 of big is lost; connecting again" in capfd.readouterr().err


def test_a_tpu_host_that_ends_for_good_stops_the_others(launch_tpu, tmp_path):
    end = '((host == 1)) && exit 2\ntrap "touch $T/stopped; exit 143" TERM\n'
    assert launch_tpu(f"{end}while :; do read -rt 0.1 <> <(:); done") == (2, [1, 1])
    assert (tmp_path / "stopped").exists()


def test_the_hosts_of_tpus_stop_when_the_script_is_told(launch_tpu, tmp_path, monkeypatch):
    monkeypatch.setattr(Tpu, "submit", lambda *_: 0)  # it is started below, and ended
    launch_tpu('trap "touch ~/stopped; exit 143" TERM\nwhile :; do read -rt 0.1 <> <(:); done')
    script = subprocess.Popen(["bash", "launch/big/tpu.sh"])
    wait_until(lambda: len(list(tmp_path.glob("host-*/started"))) == 2)
    script.send_signal(signal.SIGTERM)
    assert script.wait(30) == 143
    assert len(list(tmp_path.glob("host-*/stopped"))) == 2
    assert [len(file.read_text()) for file in tmp_path.glob("host-*/started")] == [1, 1]


def test_a_job_is_written_into_the_run_and_submitted_once(shims, tmp_path, monkeypatch, capsys):
    shims("sbatch", 'cp "${*: -1}" "$T/submitted"; echo "7;main"')
    shims("squeue", 'grep -q -- "--jobs=7" <<< "$*" && cat "$T/queue"')
    (tmp_path / "queue").write_text("PENDING\n")
    run = tmp_path / "a run"
    arguments = ["slurm", "--hosts=2", "--", "train", *CONFIG.split(), "--workdir", str(run)]
    assert launch_command(arguments).run() == 0
    script = run / "launch/slurm.sh"
    assert (tmp_path / "submitted").read_text() == script.read_text()
    assert f"submitted as job 7; its log: {run}/launch/slurm-7.log" in capsys.readouterr().out
    with pytest.raises(UserError, match=r"job 7 of Slurm trains in .*PENDING.*scancel 7"):
        launch_command(arguments).run()
    (tmp_path / "queue").write_text("")
    assert launch_command(arguments).run() == 0
    # A directory that has only a job is free for a training.
    assert not check_workdir(Config(), run)
    with (run / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="another process trains in"):
            launch_command(arguments).run()


def test_a_client_that_refuses_or_is_missing_is_told_in_a_line(
    shims, tmp_path, monkeypatch, capsys
):
    no_store = {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_ACCESS_KEY_ID": "a"}
    no_store["AWS_MAX_ATTEMPTS"] = "1"
    for name, value in {**no_store, "AWS_SECRET_ACCESS_KEY": "b"}.items():
        monkeypatch.setenv(name, value)
    shims("sbatch", "echo 'sbatch: error: invalid partition: gpu' >&2; exit 1")
    with refused("sbatch: error: invalid partition: gpu; nothing was submitted"):
        _run("slurm --option partition=gpu", tmp_path / "run")
    shims("sbatch", "echo welcome")
    with pytest.raises(UserError, match=r"sbatch answered 'welcome' instead of a job number"):
        _run("slurm", tmp_path / "run")
    assert not (tmp_path / "run").exists()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    assert _run("kubernetes --image i:1", "s3://bucket/big") == 0
    printed, warned = capsys.readouterr()
    assert warned.startswith("warning: cannot check whether another process uses s3://bucket/big: ")
    *_, written, missing = printed.splitlines()
    assert written == "written to launch/big/jobset.yaml, as the run is in a bucket"
    assert missing.endswith("submit the job by: kubectl create -f launch/big/jobset.yaml")


@pytest.mark.parametrize(
    ("client", "form"),
    [("sbatch", "slurm"), ("kubectl", "kubernetes --image i --claim c"), ("sky", "skypilot")],
)
def test_a_job_that_is_refused_leaves_the_one_before_it(client, form, shims, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mount = f"--mount {tmp_path}" if client == "kubectl" else ""
    shims("squeue", "exit 1")
    shims(client, "echo 7")
    assert _run(f"{form} {mount}", tmp_path / "big") == 0
    [job] = tmp_path.rglob(SCHEDULERS[form.split()[0]].file)
    before = job.read_text()
    shims(client, "exit 1")
    with pytest.raises(UserError, match=f"{client} refuses"):
        _run(f"{form} {mount} --setup false", tmp_path / "big")
    assert job.read_text() == before


@pytest.mark.parametrize(
    ("form", "workdir", "train", "message"),
    [
        ("", "r", "", "takes a scheduler first (slurm, kubernetes, tpu, skypilot, ssh), not '--'"),
        ("slrum", "r", "", "not 'slrum'; did you mean slurm?"),
        ("slurm --hosst 2", "r", "", "unknown flag --hosst; did you mean"),
        ("slurm", "r", "--rate 1", "unknown flag --rate"),
        ("slurm", "r", "--process-id 1", "--process-id cannot be used in a job"),
        ("slurm", "r", "--model.num-heads 7", "not divisible by num_heads=7"),
        ("slurm --hosts 3", "r", "--parallel.fsdp 2", "with 3 hosts of 1 devices: parallel.fsdp=2"),
        ("slurm --hosts 4 --min-hosts 3 --gpus 2", "r", "--parallel.data 8", "with 3 hosts of 2"),
        ("slurm --hosts 2 --min-hosts 3", "r", "", "--min-hosts 3 is more than the 2 of --hosts"),
        ("ssh --hosts a b --min-hosts 3", "r", "", "--min-hosts 3 is more than the 2 of --hosts"),
        ("slurm --hosts 0", "r", "", "--hosts 0 is too few"),
        ("slurm --retries -1", "r", "", "--retries -1 is negative"),
        ("slurm --option =x", "r", "", "--option '=x' is not name=value"),
        ("slurm --time 24h", "r", "", "--time 24h is not a Slurm time"),
        ("slurm --name a:b", "r", "", "is not a job name for sbatch; pass a name without colons"),
        ("slurm --name 'a\nb'", "r", "", "is not a job name for sbatch"),
        ("slurm", "r", "--data.corpus text:/nope", "corpus directory /nope does not exist"),
        ("ssh --hosts a:22", "r", "", "--hosts 'a:22' is not NAME or USER@NAME"),
        ("ssh", "r", "", "there is no host to train on"),
        ("ssh --hosts -bad h2", "r", "", "Unrecognized options: -bad; see --help"),
        ("ssh --hosts a a", "r", "", "--hosts names a 2 times"),
        ("tpu --zone z --runtime r", "gs://b/x", "", "needs --accelerator"),
        ("tpu --zone z --runtime r --accelerator a", "r", "", "--workdir r is relative"),
        ("kubernetes", "gs://b/x", "", "a pod needs an image"),
        ("kubernetes --image i", "gs://b/X_1", "", "'X_1' is not a job name for kubectl"),
        ("kubernetes --image i", "/runs/x", "", "pods cannot see /runs/x"),
        ("kubernetes --image i --claim c", "/data/x", "", "is not below --mount /runs"),
        ("kubernetes --image i --memory 64", "gs://b/x", "", "--memory 64 is not an amount of"),
        ("kubernetes --image i --tpu v6e", "gs://b/x", "", "--tpu v6e is not KIND:TOPOLOGY"),
        ("kubernetes --image i --tpu a:4x4 --hosts 3", "gs://b/x", "", "do not fit on 3 hosts"),
        ("kubernetes --image i --slices 2", "gs://b/x", "", "--slices 2 is only for TPUs"),
    ],
)
def test_a_mistake_is_refused_in_a_line_before_anything_is_written(
    form, workdir, train, message, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with refused(message):
        _run(form, workdir, train)
    assert list(tmp_path.iterdir()) == []


def test_a_command_without_a_training_is_refused():
    for end in ([], ["--"], ["--", "serve"], ["train", "--config", "configs/base.py"]):
        with pytest.raises(UserError, match="takes -- and train RUN last"):
            launch_command(["slurm", *end])


@pytest.mark.parametrize("name", SCHEDULERS)
def test_every_scheduler_explains_its_flags(name, capsys):
    with pytest.raises(SystemExit) as end:
        launch_command([name, "--help"])
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: t2t-jax launch {name} ")
