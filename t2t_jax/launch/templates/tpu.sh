#!/bin/bash
# Written by t2t-jax launch tpu. It goes on for as long as the training does: it waits for the queued
# resource, and makes it anew when it was taken away. Call it in a clone of the repository, which is
# copied to the hosts.
cd @{directory} || exit
name=@{name} zone=@{zone}

state() {
    gcloud compute tpus queued-resources describe "$name" --zone "$zone" --format='value(state.state)' 2>/dev/null
}
create() {
    gcloud compute tpus queued-resources create "$name" --node-id "$name" --zone "$zone" \
        --accelerator-type @{accelerator} --runtime-version @{runtime} @{options}
}
on_all_hosts() {
    gcloud compute tpus tpu-vm ssh "$name" --zone "$zone" --worker=all --command "$1"
}
training=$(
    cat <<'END_OF_TRAINING'
cd t2t_jax || exit
@{setup}
@{train}
END_OF_TRAINING
)

for ((again = 0; again <= @{retries}; again++)); do
    case $(state) in
        "") create || exit ;;
        FAILED | SUSPENDING | SUSPENDED)
            gcloud compute tpus queued-resources delete "$name" --zone "$zone" --force --quiet
            create || exit
            ;;
    esac
    until [[ $(state) == ACTIVE ]]; do
        if [[ $(state) == FAILED ]]; then
            echo "the queued resource $name has failed: gcloud compute tpus queued-resources describe $name --zone $zone" >&2
            exit 1
        fi
        sleep 30
    done
    gcloud compute tpus tpu-vm scp . "$name":t2t_jax --recurse --zone "$zone" --worker=all &&
        on_all_hosts "$training"
    code=$?
    # What ended on hosts that are still there has ended for good.
    if [[ $(state) == ACTIVE ]]; then
        break
    fi
done
echo "the TPUs are still there: gcloud compute tpus queued-resources delete $name --zone $zone --force" >&2
exit "$code"
