# Prints the Makefile's targets: "## Title" opens a group, "target: ... ## what it does   example" is a line of it.
# With -v only="a b c" only those targets, in this order, and the variables of "# FIRST".
BEGIN                      { wanted = split(only, order, " ") }
/^## / && !wanted          { printf "\n%s\n", substr($0, 4) }
/^[a-z-]+:[^=]*## /        {
    split($0, side, / ## /); target = side[1]; sub(/:.*/, "", target)
    at = match(side[2], /make /); text = at ? substr(side[2], 1, at - 1) : side[2]
    sub(/ +$/, "", text); told[target] = text
    if (!wanted) printf "  %-20s %-47s %s\n", target, text, at ? substr(side[2], at) : ""
}
/^# FIRST/                 { block = "first" }
/^# VARIABLES/             { block = "all"; if (!wanted) printf "\nVariables, from the command line or the environment\n" }
/^$/                       { block = "" }
block == "all" && !wanted && /^# /  { print "  " substr($0, 14) }
block == "first" && /^# /           { first[++lines] = "  " substr($0, 14) }
END {
    for (i = 1; i <= wanted; i++) printf "  make %-14s %s\n", order[i], told[order[i]]
    if (!wanted) exit
    printf "\nVariables, from the command line or the environment\n"
    for (i = 1; i <= lines; i++) print first[i]
    printf "\n  make help-all       list every target and variable: tests, proofs, databases\n"
}
