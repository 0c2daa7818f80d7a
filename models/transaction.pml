/*
 * The six-step transaction (docs/DESIGN.md) for one input partition: attempts that fence, locate, begin, produce,
 * send offsets and commit, and hang or die between any two steps, while commits arrive late, and while coordinators of the
 * group that were cut off tell where it stood then.
 *
 * Properties: each input is visible at most once, and is visible exactly if the committed offset is above it.
 *
 * Broken on purpose, one at a time: -DNO_FENCE (a producer takes the epoch as it is), -DLOCATE_FIRST (the offset is read
 * before the fence, and never confirmed), -DREUSE (after a commit without an answer the same producer aborts and begins again),
 * -DOFFSET_APART (the offset is committed beside the transaction), -DNOT_CONFIRMED (behind send offsets nobody looks
 * whether the group still stands where it was located).
 */
#ifndef TRIES
#define TRIES 2
#endif
#define INPUTS 2
#ifdef LOCATE_FIRST
#define NOT_CONFIRMED
#endif

/* The broker. */
byte epoch = 0;
bool open = false;
bool pending[INPUTS] = false;
byte pending_offset = 0; /* + 1; 0 is none */
byte visible[INPUTS] = 0;
byte committed = 0;

/* Commits on their way: late[e] says that one of epoch e may still arrive. */
bool late[8] = false;

inline clear() {
    pending[0] = false;
    pending[1] = false;
    pending_offset = 0;
    open = false
}

inline check() {
    assert(visible[0] <= 1 && visible[1] <= 1);
    assert((visible[0] == 1) == (committed > 0));
    assert((visible[1] == 1) == (committed > 1))
}

inline end_commit(e) {
    if
    :: e == epoch && open ->
        visible[0] = visible[0] + pending[0];
        visible[1] = visible[1] + pending[1];
        if
        :: pending_offset > 0 -> committed = pending_offset - 1
        :: else
        fi;
        clear();
        check()
    :: else /* INVALID_PRODUCER_EPOCH, or nothing to end */
    fi
}

/* A commit that was held up in the network arrives. */
proctype network() {
    do
    :: atomic { late[1] -> late[1] = false; end_commit(1) }
    :: atomic { late[2] -> late[2] = false; end_commit(2) }
    :: atomic { late[3] -> late[3] = false; end_commit(3) }
    :: atomic { late[4] -> late[4] = false; end_commit(4) }
    :: atomic { late[5] -> late[5] = false; end_commit(5) }
    :: atomic { late[6] -> late[6] = false; end_commit(6) }
    :: break
    od
}

/* Who is asked may have been cut off at any time: until the first commit the group stood at 0. */
inline locate(at) {
#ifdef LOCATE_FIRST
    at = committed
#else
    if
    :: at = committed
    :: at = 0
    fi
#endif
}

/* 1 fence: the epoch rises, what an older holder left open is aborted. */
inline fence() {
#ifdef NO_FENCE
    mine = (epoch == 0 -> 1 : epoch);
    epoch = mine
#else
    epoch++;
    mine = epoch;
    clear()
#endif
}

/* Attempts are alike, so they are numbered by who begins first: any other order is this one under other numbers. */
byte begun = 0;

inline begin_try() {
    tries < TRIES && (tries > 0 || n == begun) ->
    if
    :: tries == 0 -> begun++
    :: else
    fi;
    tries++
}

proctype attempt(byte n) {
    byte mine = 0;
    byte from = 0;
    byte k = 0;
    byte tries = 0;
    bool fenced = false;

again:
    do
    :: tries == TRIES -> break
    :: break /* dies */
#ifdef LOCATE_FIRST
    :: atomic { begin_try(); locate(from) }; atomic { fence() };
#else
    :: atomic { begin_try(); fence() };
#endif
begin:
        /* 2 locate: only now nobody moves it behind our back. */
#ifndef LOCATE_FIRST
        locate(from);
#endif
        if
        :: from == INPUTS -> break
        :: else
        fi;
        /* 3 begin: the client's note alone. 4 produce. */
        k = from;
        fenced = false;
        do
        :: k < INPUTS && !fenced ->
            atomic {
                if
                :: mine == epoch -> open = true; pending[k] = true
                :: else -> fenced = true
                fi;
                k++
            }
        :: else -> break
        od;
        if
        :: fenced -> goto again
        :: else
        fi;
        /* 5 send offsets. */
        atomic {
            if
            :: mine == epoch ->
#ifdef OFFSET_APART
                committed = INPUTS
#else
                open = true;
                pending_offset = INPUTS + 1
#endif
            :: else -> fenced = true
            fi
        };
        if
        :: fenced -> goto again
        :: else
        fi;
#ifndef NOT_CONFIRMED
        /* Only a coordinator that knows of this pending offset is believed; the answer takes its time. */
        atomic {
            if
            :: mine == epoch && from != committed -> clear(); fenced = true
            :: else
            fi
        };
        if
        :: fenced -> goto again
        :: else
        fi;
#endif
        /* 6 commit: it arrives, or arrives late, or never. */
        if
        :: atomic { end_commit(mine) }; break
        :: late[mine] = true;
#ifdef REUSE
            /* No answer: the producer is kept, aborts, and begins again with the epoch that it has. */
            atomic {
                if
                :: mine == epoch -> clear()
                :: else -> goto again
                fi
            };
            tries++;
            if
            :: tries <= TRIES -> goto begin
            :: else -> break
            fi
#else
            skip
#endif
        :: skip
        fi
    od
}

proctype watcher() {
    atomic { check() }
}

init {
    atomic {
        run network();
        run attempt(0);
        run attempt(1);
        run attempt(2);
        run watcher()
    }
}
