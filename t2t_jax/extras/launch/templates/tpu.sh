#!/bin/bash
# Written by t2t-jax launch tpu. Run this script in a clone of the repository. It waits for the queued
# resource, copies the files that git tracks to the hosts, and shows the output of training until it ends.
# It requests the resource again after a preemption, and reconnects after a lost connection.
cd @{directory} || exit
name=@{name} zone=@{zone}
scratch=$(mktemp -d) || exit
trap 'rm -rf "$scratch"' EXIT

# Print the state of the queued resource: NONE if there is none, UNKNOWN if gcloud fails.
state() {
    local errors=$scratch/$BASHPID
    if gcloud compute tpus queued-resources describe "$name" --zone "$zone" \
        --format='value(state.state)' 2>"$errors"; then
        return
    elif grep -q NOT_FOUND "$errors"; then
        echo NONE
    else
        cat "$errors" >&2
        echo UNKNOWN
    fi
}
# Wait until the queued resource is active. Replace it if it was preempted.
wait_for_resource() {
    local now last='' created='' failures=0
    while [[ ! $stopped ]]; do
        now=$(state)
        [[ $now == ACTIVE ]] && return
        [[ $now == "$last" ]] || echo "waiting for the queued resource $name to be ACTIVE: $now" >&2
        last=$now
        case $now in
            NONE)
                created=yes
                gcloud compute tpus queued-resources create "$name" --node-id "$name" --zone "$zone" \
                    --accelerator-type @{accelerator} --runtime-version @{runtime} @{options} || return
                ;;
            UNKNOWN) ((++failures < 20)) || return 1 ;;
            FAILED | SUSPENDING | SUSPENDED)
                if [[ $now == FAILED && $created ]]; then
                    echo "the queued resource failed; for the reason: gcloud compute tpus queued-resources describe $name --zone $zone" >&2
                    return 1
                fi
                gcloud compute tpus queued-resources delete "$name" --zone "$zone" --force --quiet
                continue
                ;;
        esac
        pause 30
    done
    return 1
}
copy() {
    git ls-files -z | tar --null --files-from=- --ignore-failed-read -czf "$scratch/t2t_jax.tar.gz" &&
        gcloud compute tpus tpu-vm scp "$scratch/t2t_jax.tar.gz" "$name": --zone "$zone" --worker=all
}
on_host() {
    gcloud compute tpus tpu-vm ssh "$name" --zone "$zone" --worker="$1" --command "$2" </dev/null
}

training=$(
    cat <<'END_OF_TRAINING'
trap : TERM # The trainer also gets the signal: it writes a checkpoint and stops.
trap 'echo "$?" >~/t2t_jax.code' EXIT
cd ~/t2t_jax || exit
@{setup}
@{train}
END_OF_TRAINING
)
# The commands of a host: start training unless this attempt already did, and show its output until it
# ends.
follow_on_host=$(
    cat <<'END_OF_HOST'
cd || exit
# A process that is killed leaves no exit code.
wait_for_end() {
    until [[ -s t2t_jax.code ]] || ! kill -0 "$(cat t2t_jax.pid)" 2>/dev/null; do
        sleep 1
    done
}
lines=20
if [[ $(cat t2t_jax.attempt 2>/dev/null) != "$attempt" ]]; then
    # The trainer of an earlier attempt writes a checkpoint and stops.
    if [[ -s t2t_jax.pid ]]; then
        kill -TERM -- "-$(cat t2t_jax.pid)" 2>/dev/null
        wait_for_end
    fi
    mkdir -p t2t_jax
    find t2t_jax -mindepth 1 -maxdepth 1 ! -name .venv -exec rm -rf {} +
    tar -xzf t2t_jax.tar.gz -C t2t_jax || exit
    rm -f t2t_jax.code
    if [[ $(cat t2t_jax.stopped 2>/dev/null) == "$attempt" ]]; then
        exit
    fi
    setsid bash -c "$training" >t2t_jax.log 2>&1 </dev/null &
    echo "$!" >t2t_jax.pid
    echo "$attempt" >t2t_jax.attempt
    lines=+1
fi
tail -n "$lines" -f t2t_jax.log &
wait_for_end
sleep 1 # time for tail to show the last lines
kill "$!"
END_OF_HOST
)
# Follow training on host $1, and exit with its code. Reconnect for some minutes after a lost connection.
follow() {
    local failures=0 start
    while ((failures < 20)); do
        start=$SECONDS
        if on_host "$1" "attempt=$attempt training=$(printf %q "$training")"$'\n'"$follow_on_host"; then
            # A trainer without an exit code was killed, for example by a restart of its host.
            code=$(on_host "$1" 'cat t2t_jax.code || echo 137') && exit "$code"
        fi
        if [[ $(state) != @(ACTIVE|UNKNOWN) ]]; then
            break
        fi
        failures=$((SECONDS - start > 600 ? 1 : failures + 1))
        echo "the connection to host $1 of $name is lost; connecting again" >&2
        sleep 30
    done
    exit @{hung}
}
# Stop training on all hosts, including hosts that have not started it yet.
stop() {
    if [[ $attempt && $stopping != "$attempt" ]]; then
        stopping=$attempt
        on_host all "echo $attempt >t2t_jax.stopped; kill -TERM -- -\$(cat t2t_jax.pid) 2>/dev/null" &
    fi
}
train() {
    local i hosts ended processes=()
    hosts=$(gcloud compute tpus tpu-vm describe "$name" --zone "$zone" \
        --flatten='networkEndpoints[]' --format='value(networkEndpoints.ipAddress)' | wc -l)
    ((hosts)) || return
    attempt=$(date +%s)-$again
    for ((i = 0; i < hosts; i++)); do
        follow "$i" &
        processes+=("$!")
    done
    @{together.sh}
    attempt=
}
pause() {
    sleep "$1" &
    wait "$!"
}

attempt='' stopping='' stopped=''
trap 'stopped=yes && stop' TERM INT HUP
@{restarts.sh}
for ((again = 0; ; again++)); do
    code=1
    if wait_for_resource && copy; then
        train
    elif ((!again)); then
        break
    fi
    if [[ $stopped ]] || ! starts_again "$code" "$again"; then
        break
    fi
    pause "$((5 << (again - before < 6 ? again - before : 6)))"
    if [[ $stopped ]]; then
        break
    fi
done
echo "the TPUs still exist; to delete them: gcloud compute tpus queued-resources delete $name --zone $zone --force" >&2
exit "$code"
