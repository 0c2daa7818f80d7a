"""The fault matrix: cells `fault x target x moment`, each run with fresh topics and judged by the checker."""
