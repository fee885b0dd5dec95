# Succeed if an exit code ends the job for good: done, refused, diverged, or interrupted by Ctrl-C.
is_final() {
    [[ " @{final} " == *" $1 "* ]]
}
