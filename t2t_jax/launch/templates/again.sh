# The same command goes on from the last checkpoint after @{stopped}, which says that SIGTERM stopped it, and after
# @{hung}, which says that a process hung or was lost.
for ((again = 0; ; again++)); do
    @{train}
    code=$?
    if ((code != @{stopped} && code != @{hung})) || ((again >= @{retries})); then
        break
    fi
    sleep 30
done
exit "$code"
