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
# Each task runs one process, which gets the addresses of the other processes from Slurm. A process with
# a final exit code records the code and stops the other processes.
task=$(
    cat <<'END_OF_TASK'
trap : TERM USR1 # the trainer also gets these signals: it writes a checkpoint and stops, or profiles
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
trap '' TERM # requeueing also sends SIGTERM to this script
scontrol requeue "$SLURM_JOB_ID"
if [[ $exclude ]]; then
    scontrol update "JobId=$SLURM_JOB_ID" "ExcNodeList=$exclude"
fi
exit "$code"
