"""
The fault matrix: cells `fault x target x moment`, each run with fresh topics and judged by the checker.

`cells/` declares them by theme (`cell.CellTable`); `campaign` lists them for both readers and runs a selection; `stage`
is the environment that a cell acts on; `runner` runs one cell and judges it.
"""
