# Exclude hosts on which a process hung, if enough other hosts remain.
if ((code == @{hung})) && [[ -s @{excluded} ]]; then
    hung=$(sed 'p; s/^\([^.]*[^0-9.][^.]*\)[.].*/\1/' @{excluded}) # with and without the domain
    others=()
    for name in "${names[@]}"; do
        grep -qxF -e "${name#*@}" <<<"$hung" || others+=("$name")
    done
    if ((${#others[@]} >= @{fewest})); then
        using=("${others[@]}")
    fi
fi
