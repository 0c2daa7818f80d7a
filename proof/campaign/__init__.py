"""
The fault matrix: cells of `fault x target x moment`, each run on a cluster that the campaign can break, and checked.

`cells/` declares them by theme (`cell.CellTable`); `campaign` lists them for both readers and runs a selection; `stage`
is the environment that a cell acts on; `runner` runs one cell and judges it.
"""
