"""
Real servers on this machine, without containers.

One module per kind of server, such as `kafka`; `process` holds the shared part: processes that outlive the command that
started them and are never confused with others. `jvm` locates the jars and starts Java programs.
"""
