# Exclude nodes on which a process hung, if enough other nodes are up.
if ((code == @{hung})) && [[ -s @{excluded} ]]; then
    names=$(sed 's/[.].*//' @{excluded} | sort -u)
    up=$(sinfo --noheader --Node --responding --partition="$SLURM_JOB_PARTITION" \
        --states=idle,allocated,mixed,completing --format=%N | sort -u | grep -cvxF "$names")
    if ((up >= @{fewest})); then
        exclude=$(paste -sd, <<<"$names")
    else
        echo "only $up other nodes are up, so these nodes stay although a process hung: ${names//$'\n'/ }" >&2
    fi
fi
