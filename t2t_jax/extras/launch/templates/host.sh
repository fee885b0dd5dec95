# Start the training processes of this host.
host=@{host} hosts=@{hosts} first=@{first}
devices=(@{devices}) # the device ids of each process
processes=()
stop() {
    kill -TERM "${processes[@]}" 2>/dev/null
}
trap stop TERM INT
@{final.sh}
for i in "${!devices[@]}"; do
    JAX_LOCAL_DEVICE_IDS=${devices[i]} @{train} \
        --coordinator "$first:@{port}" --num-processes "$((hosts * ${#devices[@]}))" \
        --process-id "$((host * ${#devices[@]} + i))" &
    processes+=("$!")
done
@{together.sh}
exit "$code"
