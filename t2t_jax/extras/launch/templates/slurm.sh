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
@{restarts.sh}
record=@{record}-$SLURM_JOB_ID
rm -f "$record.final"
# Each task is a process, which learns from Slurm where the others are. One that ends for good
# records its exit code and stops the others.
task=$(
    cat <<'END_OF_TASK'
trap : TERM USR1 # for the training, which gets them too: stop with a checkpoint, or write a profile
@{final.sh}
@{train}
code=$?
if ((code)) && is_final "$code"; then
    echo "$code" >"$1.final"
    scancel --signal=TERM "$SLURM_JOB_ID.$SLURM_STEP_ID"
fi
exit "$code"
END_OF_TASK
)
srun --cpu-bind=none --nodes="$SLURM_JOB_NUM_NODES" --ntasks-per-node=@{processes} \
    --ntasks="$((SLURM_JOB_NUM_NODES * @{processes}))" \
    bash -c "$task" task "$record"
code=$?
if [[ -s $record.final ]]; then
    code=$(<"$record.final")
fi

if [[ -s $record.progress ]]; then
    read -r before seen <"$record.progress"
fi
if ! starts_again "$code" "${SLURM_RESTART_COUNT:-0}"; then
    exit "$code"
fi
echo "$before $seen" >"$record.progress"
exclude=
@{exclusion}
trap '' TERM # of the requeueing, which ends this script too
scontrol requeue "$SLURM_JOB_ID"
if [[ $exclude ]]; then
    scontrol update "JobId=$SLURM_JOB_ID" "ExcNodeList=$exclude"
fi
exit "$code"
