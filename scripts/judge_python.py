"""Whether brew's environment can be made with the Python that runs this; 0: yes, 10: yes, but it is slow, else no."""

import ensurepip  # noqa: F401 - what `python -m venv` needs; Debian keeps it in a package of its own
import sys
import sysconfig

if sys.version_info < (3, 11):  # noqa: UP036 - older ones are asked, too
    sys.exit(1)
# Debian's and Ubuntu's builds are optimised, and do not tell.
told = "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "")
sys.exit(0 if told or sys.base_prefix == "/usr" else 10)
