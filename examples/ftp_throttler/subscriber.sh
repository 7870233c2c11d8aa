#!/bin/sh
# Fetches what is new on a plain FTP server, in turns with everybody else who does. For a crontab:
#
#   */10 * * * *  /opt/bin/subscriber.sh ftp://ftp.example.org/outgoing/ /srv/incoming
#
# SLOTS (2) of all subscribers transfer at a time; DEADLINE (10m) is for one turn, from its start; WAIT (2h) for a turn;
# TRIES (8) turns at most, with pauses of 1, 2, 4, ... 60 s, where the server is away.
# Exit code: that of the transfer, 75 where no turn came in time, 124 where the deadline was over.
set -eu
url=$1 incoming=$2
mkdir -p "$incoming"
said=$(mktemp)
trap 'rm -f "$said"' EXIT

# `softmutex run` becomes the command's parent: no shell in between, signals go to the whole group, the exit code is
# the command's own. `timeout` counts from when the turn begins, since it starts then.
turn() { softmutex run -n ftp-server --slots "${SLOTS:-2}" --timeout "${WAIT:-2h}" -- timeout "${DEADLINE:-10m}" "$@"; }

# Whether another turn may help: the server is away, full or broke off. Not where it refuses (5xx), nor a deadline.
may_help() {
    case $1 in
    6 | 7 | 8 | 12 | 18 | 28 | 52 | 55 | 56) return 0 ;; # curl: no such host, no connection, a part, silence
    1) ! grep -Eq ': 5[0-9][0-9] ' "$said" ;;            # lftp: anything; it says what
    *) return 1 ;;
    esac
}

# The turn is given back before each pause: nobody waits for a server with the turn in hand.
in_turns() {
    pause=1 try=1
    while :; do
        code=0
        turn "$@" 2>"$said" || code=$?
        cat "$said" >&2
        [ "$code" -ne 0 ] || return 0
        may_help "$code" && [ "$try" -lt "${TRIES:-8}" ] || return "$code"
        sleep "$pause"
        try=$((try + 1)) pause=$((pause * 2 > 60 ? 60 : pause * 2))
    done
}

case $url in
*/)
    # A directory: lftp fetches what is missing and goes on where a transfer broke off.
    in_turns lftp -c "set net:timeout 20; set net:max-retries 1; set net:persist-retries 0; set cmd:fail-exit yes
        mirror --continue --ignore-time --no-recursion '$url' '$incoming'"
    ;;
*)
    # A file: so does curl. It gives up a transfer of less than 1 kB/s for 20 s.
    file=$incoming/$(basename "$url")
    in_turns curl --silent --show-error --fail --speed-limit 1000 --speed-time 20 --continue-at - \
        --output "$file.part" "$url"
    mv "$file.part" "$file"
    ;;
esac
