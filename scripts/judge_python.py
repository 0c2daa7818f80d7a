"""Check whether this Python can create brew's environment; exit 0: yes, 10: yes, but it is slow, otherwise: no."""

import ensurepip  # noqa: F401 - needed by `python -m venv`; Debian has it in a separate package
import sys
import sysconfig

if sys.version_info < (3, 11):  # noqa: UP036 - older ones may run this, too
    sys.exit(1)
# Debian's and Ubuntu's builds are optimised but do not show it.
told = "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "")
sys.exit(0 if told or sys.base_prefix == "/usr" else 10)
