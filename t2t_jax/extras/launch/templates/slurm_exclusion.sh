# Nodes on which a process hung are left out, as long as enough others are up.
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
