"""
Real servers on this machine without containers.

One module per kind of server (`kafka`); `process` keeps what they share: processes that outlive the command that
started them, and are never mistaken for others. `jvm` knows where the jars are and how to start a Java program.
"""
