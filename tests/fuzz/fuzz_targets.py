"""Every reader of what others send."""

from __future__ import annotations

import fuzz_lake
import fuzz_log
import fuzz_settings
import fuzz_text
from fuzz_driver import Target

TARGETS: tuple[Target, ...] = (
    *fuzz_log.TARGETS,
    *fuzz_text.TARGETS,
    *fuzz_settings.TARGETS,
    *fuzz_lake.TARGETS,
)
