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
    (
        @{script}
    ) </dev/null &
    training=$!
    # It ends when the script on the submitting machine does, however that ends.
    (
        cat
        kill -TERM "$training"
    ) <&0 >/dev/null 2>&1 &
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
    @{together}
    stop
}
stop() {
    exec 3>&-
}

told=
trap 'told=yes && stop' TERM INT
using=("${names[@]}")
for ((again = 0; ; again++)); do
    train
    # The same command goes on from the last checkpoint after @{stopped}, which says that SIGTERM stopped it,
    # and after @{hung}, which says that a process hung or was lost.
    if [[ $told ]] || ((code != @{stopped} && code != @{hung})) || ((again >= @{retries})); then
        break
    fi
    # Hosts on which a process hung are left out, as long as enough others are there.
    if ((code == @{hung})) && [[ -s @{excluded} ]]; then
        hung=$(sed 'p; s/^\([^.]*[^0-9.][^.]*\)[.].*/\1/' @{excluded}) # with a domain, and without
        others=()
        for name in "${names[@]}"; do
            grep -qxF -e "${name#*@}" <<<"$hung" || others+=("$name")
        done
        if ((${#others[@]} >= @{fewest})); then
            using=("${others[@]}")
        fi
    fi
    sleep 5
done
exit "$code"
