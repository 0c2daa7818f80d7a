/*
 * The claim protocol (docs/CLAIMS.md) for one partition: claimants that read, claim, read back, beat, work, release,
 * sleep and die between any two steps, while the brokers' clock runs.
 *
 * All readers of the log hold the same fold, and what it makes of a record is fixed once the record stands there. So the
 * model keeps the fold as it is at the log's end, and each process the answers to its own records, which it looks at
 * later: others may have written in between. Time is the age of the newest sign of life, 3 is stale; a claimant tries
 * whenever it likes, as one would whose guess of the time is wrong. Processes 0 and 2 are two lives of one client_id.
 *
 * Broken on purpose, one at a time: -DNO_READ_BACK (a claim is believed once it is written), -DNO_TOKEN (the fold looks
 * at the owner alone), -DNO_VERIFY (messages are worked on whatever the fold says to their claim), -DNO_FENCE (what
 * is written to takes writes of any token).
 */
#ifndef LOG
#define LOG 5
#endif
#define PROCESSES 3
#define MESSAGES 1
#define NOBODY 9
#define STALE 3
#define client(p) ((p) == 2 -> 0 : (p))

/* The fold at the log's end. Tokens are offsets + 1, 0 is none. */
byte length = 0;
byte owner = NOBODY;
byte token = 0;
byte age = 0;
byte position = 0;

/* What each process believes; and for the properties alone: who each token was granted to, and what was done. */
byte held[PROCESSES] = 0;
byte granted[LOG + 1] = NOBODY;
byte worked[MESSAGES] = 0;
byte fence = 0;

#ifdef NO_TOKEN
#define current(p, k) (owner == client(p))
#else
#define current(p, k) (owner == client(p) && token == k)
#endif

/* Nobody believes what the log does not say: each token has one process, and it is the one that holds it. */
inline believe(p, k) {
    held[p] = k;
    assert(granted[k] == p)
}

/* Each of these writes one record and leaves in `answer` what the fold makes of it. */
inline write_claim(p) {
    length++;
    answer = (owner == NOBODY || age == STALE);
    if
    :: answer -> owner = client(p); token = length; age = 0; granted[length] = p
    :: else
    fi
}

inline write_beat(p, k) {
    length++;
    answer = current(p, k);
    if
    :: answer -> age = 0; assert(granted[token] == p)
    :: else
    fi
}

inline write_resume(p, k) {
    length++;
    answer = (current(p, k) && age < STALE);
    if
    :: answer -> token = length; age = 0; granted[length] = p
    :: else
    fi
}

inline write_release(p, k) {
    length++;
    answer = current(p, k);
    if
    :: answer -> owner = NOBODY; assert(granted[token] == p)
    :: else
    fi
}

inline write_messages(p, k, upto) {
    length++;
    answer = (current(p, k) && upto > position);
    if
    :: answer -> position = upto; age = 0
    :: else
    fi
}

proctype worker(byte p) {
    bool answer = false;
    byte at = 0;

    /* A second life of the same client begins with a resume, if it finds itself as the owner. */
    if
    :: atomic { p == 2 && owner == client(p) && age < STALE -> at = token };
        atomic {
            if
            :: length < LOG -> write_resume(p, at); at = length
            :: else -> answer = false
            fi
        };
        if
        :: answer -> believe(p, at)
        :: else
        fi;
        atomic { answer = false; at = 0 }
    :: true
    fi;

    do
    /* It read the world some time ago. It writes, and some time later reads back. */
    :: atomic { held[p] == 0 && length < LOG -> write_claim(p); at = length };
        atomic {
#ifdef NO_READ_BACK
            believe(p, at);
#else
            if
            :: answer -> believe(p, at)
            :: else
            fi;
#endif
            answer = false;
            at = 0
        }
    :: atomic { held[p] != 0 && length < LOG -> write_beat(p, held[p]) };
        atomic {
            if
            :: answer
            :: else -> held[p] = 0
            fi;
            answer = false
        }
    :: atomic { held[p] != 0 && length < LOG -> write_release(p, held[p]); held[p] = 0; answer = false }
    /* At-most-once: claim the next message as this process knows the world, read back, and only then work. */
    :: atomic { held[p] != 0 && length < LOG && position < MESSAGES -> at = position };
        atomic {
            if
            :: length < LOG -> write_messages(p, held[p], at + 1)
            :: else -> answer = false
            fi
        };
        atomic {
#ifdef NO_VERIFY
            answer = true;
#endif
            if
            :: answer -> worked[at]++; assert(worked[at] <= 1)
            :: else -> held[p] = 0
            fi;
            answer = false;
            at = 0
        }
    /* An effect that is fenced by the token: what is written to takes no older token than it has seen. */
    :: atomic {
            held[p] != 0;
#ifdef NO_FENCE
            assert(held[p] >= fence);
            fence = held[p]
#else
            if
            :: held[p] >= fence -> fence = held[p]; assert(granted[held[p]] == p)
            :: else -> held[p] = 0
            fi
#endif
        }
    :: break /* dies */
    od
}

proctype clock() {
end:
    do
    :: atomic { age < STALE -> age++ }
    od
}

init {
    atomic {
        run worker(0);
        run worker(1);
        run worker(2);
        run clock()
    }
}
