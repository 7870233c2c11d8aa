#!/bin/sh
# systemd-run: a transfer as a unit of its own, in its turn. It outlives the shell, has limits, and logs to the journal.
#
#   systemd_run.sh rsync -a /data backup:
#
# `systemctl --user stop` reaches the transfer (KillMode=mixed), which may finish what it is at; then the next one is in.
exec systemd-run --user --collect --quiet \
    --property=KillMode=mixed --property=TimeoutStopSec=60 --property=SuccessExitStatus=75 \
    --setenv=SOFTMUTEX_GROUP="${SOFTMUTEX_GROUP:-default}" --working-directory="$PWD" \
    "$(command -v softmutex)" run -n nightly-ftp --timeout 3h -- "$@"
