"""What `softmutex bench` measures: each module one thing, next to something measured beside it in the same run.

Machines differ and are shared, so a figure alone says little: every time is given as a ratio, too.
"""
