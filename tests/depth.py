"""How deep a search goes. SOFTMUTEX_DEEP=1 adds what takes minutes each, and so is no part of CI."""

import os

DEEP = bool(os.environ.get("SOFTMUTEX_DEEP"))
