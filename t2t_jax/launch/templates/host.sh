# The processes of this host. When one of them fails, the others are stopped with a checkpoint.
host=@{host} hosts=@{hosts} first=@{first}
devices=(@{devices}) # of each process
processes=()
stopped=
stop() {
    # A second signal would end a training without a checkpoint.
    [[ $stopped ]] || kill -TERM "${processes[@]}" 2>/dev/null
    stopped=yes
}
trap stop TERM INT
for i in "${!devices[@]}"; do
    JAX_LOCAL_DEVICE_IDS=${devices[i]} @{train} \
        --coordinator "$first:@{port}" --num-processes "$((hosts * ${#devices[@]}))" \
        --process-id "$((host * ${#devices[@]} + i))" &
    processes+=("$!")
done
code=0
for i in "${!devices[@]}"; do
    wait -n || { code=$? && break; }
done
((code == 0)) || stop
wait
exit "$code"
