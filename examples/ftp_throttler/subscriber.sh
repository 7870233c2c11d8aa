#!/bin/sh
# Fetches what is new on a plain FTP server, in turns with everybody else who does. For a crontab:
#
#   */10 * * * *  /opt/bin/subscriber.sh ftp://ftp.example.org/outgoing/ /srv/incoming
#
# SLOTS (2) of all subscribers transfer at a time; DEADLINE (10m) is for one turn, from its start; WAIT (2h) for a turn.
# Exit code: that of the transfer, 75 where no turn came in time.
set -eu
url=$1 incoming=$2
mkdir -p "$incoming"

# `softmutex run` becomes the command's parent: no shell in between, signals go to the whole group, the exit code is
# the command's own. `timeout` counts from when the turn begins, since it starts then.
turn() { softmutex run -n ftp-server --slots "${SLOTS:-2}" --timeout "${WAIT:-2h}" -- timeout "${DEADLINE:-10m}" "$@"; }

case $url in
*/)
    # A directory: lftp fetches what is missing and goes on where a transfer broke off.
    turn lftp -c "set net:timeout 20; set net:max-retries 5; set cmd:fail-exit yes
        mirror --continue --ignore-time --no-recursion '$url' '$incoming'"
    ;;
*)
    # A file: so does curl. It gives up a transfer of less than 1 kB/s for 20 s.
    file=$incoming/$(basename "$url")
    turn curl --silent --show-error --fail --retry 5 --retry-delay 1 --speed-limit 1000 --speed-time 20 \
        --continue-at - --output "$file.part" "$url"
    mv "$file.part" "$file"
    ;;
esac
