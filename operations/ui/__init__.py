"""The live view: what a group does to its topics, as a page that keeps itself current, and on the terminal."""
