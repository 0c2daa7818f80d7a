# Prints the Makefile's targets: "## Title" opens a group, "target: ... ## what it does   example" is a line of it.
/^## /                     { printf "\n%s\n", substr($0, 4) }
/^[a-z-]+:[^=]*## /        {
    split($0, side, / ## /); target = side[1]; sub(/:.*/, "", target)
    at = match(side[2], /make /); text = at ? substr(side[2], 1, at - 1) : side[2]
    sub(/ +$/, "", text)
    printf "  %-20s %-47s %s\n", target, text, at ? substr(side[2], at) : ""
}
/^# VARIABLES/             { variables = 1; printf "\nVariables, from the command line or the environment\n" }
variables && /^# /         { print "  " substr($0, 14) }
