#!/bin/bash
# Written by t2t-jax launch ssh. This script runs until training ends. If the script is stopped or killed,
# its connections close, and the hosts write a checkpoint and stop.
names=(@{hosts})
script=@{path}

# Train on this host. The arguments are its index, the number of hosts and the first host's name.
on_host() {
    local training code
    cd @{directory} || exit
    @{setup}
    # After a lost connection, the previous process on this host may still be writing its checkpoint.
    exec 9>"/tmp/t2t_jax-$UID-$(cksum <<<"$script" | cut -d' ' -f1)-$1.lock"
    flock --wait 600 9 || exit @{hung}
    (
        @{script}
    ) </dev/null 9>&- &
    training=$!
    # Stop when the script on the submitting machine ends, which closes standard input.
    (
        cat
        kill -TERM "$training"
    ) <&0 >/dev/null 2>&1 9>&- &
    wait "$training"
    code=$?
    kill "$!" 2>/dev/null
    exit "$code"
}
if [[ $1 == on_host ]]; then
    on_host "$2" "$3" "$4"
fi

# Train on the hosts in `using`, which stop when their standard input closes.
train() {
    local i ended pipe processes=()
    pipe=$(mktemp -u) && mkfifo -m 600 "$pipe" && exec 3<>"$pipe" 4<"$pipe" && rm "$pipe" || exit
    for i in "${!using[@]}"; do
        ssh -o BatchMode=yes -o ServerAliveInterval=30 @{options} "${using[i]}" \
            "bash $(printf %q "$script") on_host $i ${#using[@]} ${using[0]#*@}" <&4 3>&- 4<&- &
        processes+=("$!")
    done
    exec 4<&-
    @{together.sh}
    stop
}
stop() {
    exec 3>&-
}

stopped=
trap 'stopped=yes && stop' TERM INT
@{restarts.sh}
using=("${names[@]}")
for ((again = 0; ; again++)); do
    train
    if [[ $stopped ]] || ! starts_again "$code" "$again"; then
        break
    fi
    @{exclusion}
    # Wait longer after each restart: a host that is down for some minutes does not end the job.
    sleep "$((5 << (again - before < 6 ? again - before : 6)))" &
    wait "$!"
    if [[ $stopped ]]; then
        break
    fi
done
exit "$code"
