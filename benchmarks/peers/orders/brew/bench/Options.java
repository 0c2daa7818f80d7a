package brew.bench;

import java.util.HashMap;
import java.util.Map;
import java.util.Set;

/** What a peer's command line gives: the value behind each --NAME. */
final class Options {
    private static final Set<String> NEEDED =
            Set.of("bootstrap", "input", "output", "dead-letter", "group", "state-dir");

    private Options() {}

    /** Ends the process with 64 where one is missing. */
    static Map<String, String> of(String program, String[] arguments) {
        Map<String, String> found = new HashMap<>();
        for (int at = 0; at + 1 < arguments.length; at += 2) {
            found.put(arguments[at].replaceFirst("^--", ""), arguments[at + 1]);
        }
        if (arguments.length % 2 != 0 || !found.keySet().containsAll(NEEDED)) {
            System.err.println(program + ": give --NAME VALUE for each of " + NEEDED);
            System.exit(64);
        }
        return found;
    }
}
