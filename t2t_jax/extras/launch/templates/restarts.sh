@{final.sh}
# Whether the training starts again after exit code $1 and $2 restarts. It resumes from its last
# checkpoint, unless the code is final or @{retries} restarts in a row (--retries) made no new checkpoint.
starts_again() {
    local newest
    is_final "$1" && return 1
    newest=$(@{list} 2>/dev/null | grep -oE '(^|/)[0-9]+/?$' | tr -d / | sort -n | tail -n 1)
    if [[ $newest != "$seen" ]]; then
        seen=$newest before=$2
    fi
    if (($2 - before >= @{retries})); then
        echo "not started again: no new checkpoint after $(($2 - before)) restarts (--retries);" \
            "to go on:" @{command} >&2
        return 1
    fi
}
seen='' before=0 # the newest checkpoint, and the restarts before it was seen
