"""The live view: what a group does to its topics, as a page that updates itself, and on the terminal."""
