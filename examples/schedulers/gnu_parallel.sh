#!/bin/sh
# GNU parallel limits the jobs of one host; the mutex limits those of all hosts together.
# Each waits in a slot of parallel's (-j): give more slots than may run, so that the next one is ready.
#
#     gnu_parallel.sh FILE-OF-URLS COMMAND...
urls=$1
shift
exec parallel --arg-file "$urls" -j 4 --halt soon,fail=50% \
    softmutex run -q -n nightly-ftp --slots 2 --timeout 1h -- "$@" '{}'
