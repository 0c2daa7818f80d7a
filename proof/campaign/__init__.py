"""
The fault matrix: cells `fault x target x moment`, each run on a cluster of its own making and judged by the checker.

`cells/` declares them by theme (`cell.CellTable`), `campaign` lists them over both readers and runs many; `stage` is
what a cell acts on; `runner` carries one out and judges it.
"""
