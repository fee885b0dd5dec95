# Wait for all processes; when a process fails, stop the others. The exit code is a final exit code, or
# else the first exit code other than 0.
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
