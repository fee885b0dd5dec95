# Hosts on which a process hung are left out, as long as enough others are there.
if ((code == @{hung})) && [[ -s @{excluded} ]]; then
    hung=$(sed 'p; s/^\([^.]*[^0-9.][^.]*\)[.].*/\1/' @{excluded}) # with a domain, and without
    others=()
    for name in "${names[@]}"; do
        grep -qxF -e "${name#*@}" <<<"$hung" || others+=("$name")
    done
    if ((${#others[@]} >= @{fewest})); then
        using=("${others[@]}")
    fi
fi
