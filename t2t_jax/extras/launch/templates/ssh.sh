#!/bin/bash
# Written by t2t-jax launch ssh. It goes on for as long as the training does. When it ends, however it
# ends, so do its connections, and the hosts stop with a checkpoint.
names=(@{hosts})
script=@{path}

# What a host runs, which is told its number, how many hosts there are, and the name of the first.
on_host() {
    local training code
    cd @{directory} || exit
    @{setup}
    # After a lost connection, the earlier training on this host may still write its checkpoint.
    exec 9>"/tmp/t2t_jax-$UID-$(cksum <<<"$script" | cut -d' ' -f1)-$1.lock"
    flock --wait 600 9 || exit @{hung}
    (
        @{script}
    ) </dev/null 9>&- &
    training=$!
    # It ends when the script on the submitting machine does, however that ends.
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

# Train on the hosts in `using`, which stop when their standard input ends.
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
    # A host that is away for some minutes does not end the job.
    sleep "$((5 << (again - before < 6 ? again - before : 6)))" &
    wait "$!"
    if [[ $stopped ]]; then
        break
    fi
done
exit "$code"
