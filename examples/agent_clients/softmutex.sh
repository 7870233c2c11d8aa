#!/bin/sh
# Runs a command while the agent of this user holds a mutex for it. POSIX shell, socat, setsid.
#
#   ./softmutex.sh NAME SECONDS COMMAND [ARGUMENT ...]
#
# Exit code: the command's; 75 not acquired within SECONDS (0: not waited for), 69 no agent, 64 a wrong call.
# ON_LOST=term ends the command when others may hold the mutex, too. The protocol: docs/reference/agent-protocol.md
set -u
say() { echo "softmutex: $*" >&2; }
[ $# -ge 3 ] || { say "usage: $0 NAME SECONDS COMMAND [ARGUMENT ...]"; exit 64; }
name=$1 seconds=$2
shift 2
case $name in *[\"\\]*) say "a name without quotes and backslashes, please"; exit 64 ;; esac
agent=${SOFTMUTEX_AGENT:-/tmp/softmutex-$(id -u)/agent.sock}
[ -S "$agent" ] && [ "$(stat -c %u "$agent")" = "$(id -u)" ] || { say "no agent of yours at $agent"; exit 69; }

place=$(mktemp -d) && mkfifo "$place/to" "$place/from" || exit 69
socat - "UNIX-CONNECT:$agent" < "$place/to" > "$place/from" 2> /dev/null &
exec 3> "$place/to" 4< "$place/from"
rm -r "$place"
tell() { printf '%s\n' "$1" >&3; }
value() { printf '%s\n' "$line" | sed -n "s/.*\"$1\": *\"\{0,1\}\([^\",}]*\).*/\1/p"; }

tell "{\"is\": \"want\", \"version\": 1, \"name\": \"$name\", \"timeout\": $seconds, \"purpose\": \"${1##*/}\"}"
while :; do
    IFS= read -r line <&4 || { say "the agent hung up"; exit 69; }
    case $(value is) in
    granted) tell "{\"is\": \"take\", \"turn\": $(value turn)}" ;;
    go) break ;;
    failed) say "$(value why)"; exit "$(value code)" ;;
    elsewhere) say "$(value why)"; exit 69 ;;
    esac
done

# A process group of its own, which the agent ends if this script is killed.
SOFTMUTEX_HELD=$name SOFTMUTEX_EPOCH=$(value epoch) setsid "$@" 3>&- 4<&- &
command=$!
trap 'kill -TERM "-$command"' TERM INT HUP
tell "{\"is\": \"running\", \"group\": $command}"
(
    exec 3>&-
    while IFS= read -r line <&4; do
        [ "$(value is)" = lost ] || continue
        say "$name may be held by others, too: $(value reason)"
        [ "${ON_LOST:-warn}" != term ] || kill -TERM "-$command"
    done
) &
listener=$!
wait "$command"
code=$?
while kill -0 "$command" 2> /dev/null; do wait "$command"; code=$?; done # a trap ended the waiting
trap - TERM INT HUP
tell '{"is": "done"}'
kill "$listener" 2> /dev/null
exit "$code"
