# Whether an exit code ends the job for good: done, refused, diverged, or ended by hand.
is_final() {
    [[ " @{final} " == *" $1 "* ]]
}
