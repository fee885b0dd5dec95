#!/bin/bash
# Written by t2t-jax launch slurm.
#SBATCH --job-name=@{name}
#SBATCH --nodes=@{nodes}
#SBATCH @{share}
#SBATCH --time=@{time}
#SBATCH --signal=TERM@@{grace}
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --chdir=@{directory}
#SBATCH --output=@{log}
@{options}

@{setup}
@{devices}
# Each task is a process, which learns from Slurm where the others are.
srun --cpu-bind=none --nodes="$SLURM_JOB_NUM_NODES" --ntasks-per-node=@{processes} \
    --ntasks="$((SLURM_JOB_NUM_NODES * @{processes}))" \
    @{train}
code=$?

# The same command goes on from the last checkpoint after @{stopped}, which says that SIGTERM stopped it, and after
# @{hung}, which says that a process hung or was lost.
if ((code != @{stopped} && code != @{hung})); then
    exit "$code"
fi
if ((${SLURM_RESTART_COUNT:-0} >= @{retries})); then
    echo "not started again after ${SLURM_RESTART_COUNT:-0} times (--retries); to go on: sbatch" @{path} >&2
    exit "$code"
fi
# Nodes on which a process hung are left out, as long as enough others are up.
exclude=
if ((code == @{hung})) && [[ -s @{excluded} ]]; then
    names=$(sed 's/[.].*//' @{excluded} | sort -u)
    up=$(sinfo --noheader --Node --responding --partition="$SLURM_JOB_PARTITION" \
        --states=idle,allocated,mixed,completing --format=%N | sort -u | grep -cvxF "$names")
    if ((up >= @{fewest})); then
        exclude=$(paste -sd, <<<"$names")
    else
        echo "only $up nodes are up besides those that hung, so these stay: ${names//$'\n'/ }" >&2
    fi
fi
trap '' TERM # of the requeueing, which ends this script too
scontrol requeue "$SLURM_JOB_ID"
if [[ $exclude ]]; then
    scontrol update "JobId=$SLURM_JOB_ID" "ExcNodeList=$exclude"
fi
exit "$code"
