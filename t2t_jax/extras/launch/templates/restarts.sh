@{final.sh}
# Succeed if training restarts after exit code $1 and $2 restarts. It does not restart after a final
# exit code, or after @{retries} restarts in a row (--retries) without a new checkpoint.
starts_again() {
    local newest
    is_final "$1" && return 1
    newest=$(@{list} 2>/dev/null | grep -oE '(^|/)[0-9]+/?$' | tr -d / | sort -n | tail -n 1)
    if [[ $newest != "$seen" ]]; then
        seen=$newest before=$2
    fi
    if (($2 - before >= @{retries})); then
        echo "not restarted: no new checkpoint after $(($2 - before)) restarts (--retries);" \
            "to resume the run:" @{command} >&2
        return 1
    fi
}
seen='' before=0 # the newest checkpoint, and the number of restarts before it
