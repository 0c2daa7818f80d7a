/*
 * The sink's shared transaction (docs/guide/sink.md): a driver fences, locates, begins, has tasks write under its epoch,
 * sends the position and commits. Each process may stop for good between any two steps (a search for broken assertions
 * takes no notice of what never moves again), Spark starts tasks again, tasks write late, commits arrive late, and an
 * operator deletes the checkpoint once.
 *
 * A batch has three rows: 0 and 1 go to partition 0, by one task, row 2 to partition 1. Brokers number the records of a
 * producer epoch in each partition, and drop one whose number they have seen, whatever it holds.
 *
 * Properties: of each batch all rows are visible once, or none is; they are visible exactly if the position is behind
 * the batch; Spark's commit log moves on only if the plan ran in this attempt (its state stores); a batch that is taken
 * for written was written by the same query.
 *
 * Broken on purpose, one at a time: -DNO_FENCE (an attempt takes the epoch as it is), -DPOSITION_APART (the position is
 * committed beside the transaction), -DRETRY_IN_EPOCH (a task that Spark starts again writes, too), -DTWO_WRITERS (two
 * tasks write to one partition), -DNO_LOCATE (the checkpoint is believed), -DPLAN_NOT_RUN (a batch that is out already
 * returns at once), -DMETADATA_IGNORED (the position is believed whichever query committed it), -DCOUNT_IGNORED (the
 * driver commits although a task did not report).
 */
#ifndef TRIES
#define TRIES 1
#endif
#define BATCHES 2
#define ROWS 3
#define EPOCHS 8

/* The broker. */
byte epoch = 0;
bool open = false;
byte pending[6] = 0;
byte next[2] = 0;            /* sequence numbers of this epoch, by partition */
byte pending_position = 0;   /* + 1; 0 is none */
byte pending_query = 0;
byte visible[6] = 0;
byte position = 0;
byte position_query = 0;
bool late[EPOCHS] = false;

/* Spark: the checkpoint's query and commit log, and what tasks of an epoch reported. */
byte query = 1;
byte log = 0;
byte reported[EPOCHS] = 0;
bool repeated[EPOCHS] = false;

inline clear() {
    pending[0] = 0; pending[1] = 0; pending[2] = 0; pending[3] = 0; pending[4] = 0; pending[5] = 0;
    next[0] = 0; next[1] = 0;
    pending_position = 0;
    open = false
}

inline check() {
    assert(visible[0] <= 1 && visible[0] == visible[1] && visible[1] == visible[2]);
    assert(visible[3] <= 1 && visible[3] == visible[4] && visible[4] == visible[5]);
    assert((visible[0] == 1) == (position > 0));
    assert((visible[3] == 1) == (position > 1))
}

inline append(e, b, row, p, number) {
    if
    :: e != epoch /* ProducerFenced */
    :: e == epoch && number == next[p] -> open = true; pending[b * ROWS + row]++; next[p]++
    :: e == epoch && number != next[p] -> open = true /* a duplicate, acknowledged and dropped */
    fi
}

inline end_commit(e) {
    if
    :: e == epoch && open ->
        visible[0] = visible[0] + pending[0]; visible[1] = visible[1] + pending[1]; visible[2] = visible[2] + pending[2];
        visible[3] = visible[3] + pending[3]; visible[4] = visible[4] + pending[4]; visible[5] = visible[5] + pending[5];
        if
        :: pending_position > 0 -> position = pending_position - 1; position_query = pending_query
        :: else
        fi;
        clear();
        check()
    :: else /* InvalidProducerEpoch, or nothing to end */
    fi
}

/* Rows 0 and 1 of batch b, in an order that a task started again need not keep. */
proctype task(byte e; byte b; byte first) {
    atomic { append(e, b, first, 0, 0) };
    atomic { append(e, b, 1 - first, 0, 1); reported[e] = reported[e] + 1 }
}

/* One of two tasks that share partition 0. */
proctype half(byte e; byte b; byte row) {
    atomic { append(e, b, row, 0, 0); reported[e] = reported[e] + 1 }
}

proctype network() {
end:
    do
    :: atomic { late[1] -> late[1] = false; end_commit(1) }
    :: atomic { late[2] -> late[2] = false; end_commit(2) }
    :: atomic { late[3] -> late[3] = false; end_commit(3) }
    :: atomic { late[4] -> late[4] = false; end_commit(4) }
    od
}

proctype driver(byte tries) {
    byte b = 0;
    byte mine = 0;
    byte its_query = 0;
    bool planned = false;

again:
end_idle:
    do
    :: atomic { tries > 0 && log < BATCHES -> tries--; b = log; its_query = query; planned = false };
        /* 1 fence. */
#ifdef NO_FENCE
        atomic { mine = (epoch == 0 -> 1 : epoch); epoch = mine };
#else
        atomic { epoch++; mine = epoch; clear() };
#endif
        /* 2 locate: out already, to be written, or to be refused. */
#ifndef NO_LOCATE
        if
        :: atomic { position == b + 1 ->
#ifndef METADATA_IGNORED
                if
                :: position_query != its_query -> goto refused
                :: else
                fi;
#endif
                assert(position_query == its_query)
            };
#ifndef PLAN_NOT_RUN
            planned = true; /* the plan runs, its rows are dropped */
#endif
            goto consumed
        :: atomic { position == b ->
#ifndef METADATA_IGNORED
                if
                :: position_query != 0 && position_query != its_query -> goto refused
                :: else
                fi
#else
                skip
#endif
            }
        :: else -> goto refused
        fi;
#endif
        /* 3 begin is the client's note. 4 produce: tasks write under the epoch; row 2 is another task's. */
#ifdef TWO_WRITERS
        atomic { planned = true; run half(mine, b, 0); run half(mine, b, 1) };
end_halves:
        (reported[mine] >= 2);
#else
        atomic { planned = true; run task(mine, b, 0) };
end_task:
        if
        :: (reported[mine] > 0)
        :: atomic { !repeated[mine] -> repeated[mine] = true };
#ifdef RETRY_IN_EPOCH
            atomic { run task(mine, b, 1) };
end_again:
            (reported[mine] > 0)
#else
#ifndef COUNT_IGNORED
            goto again /* the second attempt writes nothing: the batch begins again */
#endif
#endif
        fi;
#endif
        atomic {
            append(mine, b, 2, 1, 0);
            if
            :: mine != epoch -> goto again
            :: else
            fi
        };
        /* 5 send the position. */
        atomic {
            if
            :: mine != epoch -> goto again
            :: else ->
#ifdef POSITION_APART
                position = b + 1; position_query = its_query; check()
#else
                open = true; pending_position = b + 2; pending_query = its_query
#endif
            fi
        };
        /* 6 commit: it arrives, or arrives late, or never; without an answer the batch begins again. */
        if
        :: atomic {
                if
                :: mine == epoch -> end_commit(mine)
                :: else -> goto again
                fi
            }
        :: late[mine] = true; goto again
        :: goto again
        fi;
consumed:
        /* Spark's commit log, of the checkpoint that this driver knows. */
        atomic {
            assert(planned == true);
            if
            :: its_query == query && log == b -> log = b + 1
            :: else
            fi
        }
    od;
refused:
    skip
}

proctype operator() {
    atomic { query = 2; log = 0 } /* deletes the checkpoint */
}

init {
    atomic {
        run network();
        run driver(2);
        run driver(TRIES);
        run operator()
    }
}
