# Wait for all; when one has failed, stop the others, and keep the first exit code other than 0.
code=0
while ((${#processes[@]})); do
    sleep 1
    for i in "${!processes[@]}"; do
        if ! kill -0 "${processes[i]}" 2>/dev/null; then
            wait "${processes[i]}"
            ended=$?
            unset "processes[i]"
            if ((ended && !code)); then
                code=$ended
                stop
            fi
        fi
    done
done
