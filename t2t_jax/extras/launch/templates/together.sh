# Wait for all; when one has failed, stop the others. The exit code is one that is final, or else
# the first other than 0.
code=0
while ((${#processes[@]})); do
    sleep 1
    for i in "${!processes[@]}"; do
        if ! kill -0 "${processes[i]}" 2>/dev/null; then
            wait "${processes[i]}"
            ended=$?
            unset "processes[i]"
            if ((ended && !code)) || { ((ended)) && is_final "$ended"; }; then
                code=$ended
            fi
            if ((ended && ${#processes[@]})); then
                stop
            fi
        fi
    done
done
