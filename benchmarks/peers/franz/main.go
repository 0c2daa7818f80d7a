// The franz-go peer: a GroupTransactSession that commits every 100 ms, until SIGTERM.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	pollRecords = 10_000
	endPatience = 30 * time.Second
)

type options struct {
	bootstrap, input, output, deadLetter, group, instance string
	commit                                                time.Duration
}

func main() {
	var o options
	flag.StringVar(&o.bootstrap, "bootstrap", "", "any broker, host:port")
	flag.StringVar(&o.input, "input", "", "topic to read")
	flag.StringVar(&o.output, "output", "", "topic for enriched orders")
	flag.StringVar(&o.deadLetter, "dead-letter", "", "topic for rejected orders")
	flag.StringVar(&o.group, "group", "", "consumer group, and transactional id")
	flag.StringVar(&o.instance, "instance", "", "id of a static member; none: a dynamic one")
	flag.DurationVar(&o.commit, "commit", 100*time.Millisecond, "length of a transaction")
	flag.Parse()
	for _, needed := range []string{o.bootstrap, o.input, o.output, o.deadLetter, o.group} {
		if needed == "" {
			fmt.Fprintln(os.Stderr, "franz: give --bootstrap, --input, --output, --dead-letter and --group")
			os.Exit(64)
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "franz:", err)
		os.Exit(1)
	}
}

func session(o options) (*kgo.GroupTransactSession, error) {
	settings := []kgo.Opt{
		kgo.SeedBrokers(o.bootstrap),
		kgo.TransactionalID(o.group),
		kgo.TransactionTimeout(60 * time.Second),
		kgo.ConsumerGroup(o.group),
		kgo.ConsumeTopics(o.input),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.RequireStableFetchOffsets(),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		// The sizes of the other contenders' producers.
		kgo.ProducerBatchCompression(kgo.NoCompression()),
		kgo.ProducerBatchMaxBytes(512 * 1024),
		kgo.ProducerLinger(5 * time.Millisecond),
		kgo.MaxBufferedRecords(200_000),
	}
	if o.instance != "" {
		settings = append(settings, kgo.InstanceID(o.instance))
	}
	return kgo.NewGroupTransactSession(settings...)
}

func run(ctx context.Context, o options) error {
	sess, err := session(o)
	if err != nil {
		return err
	}
	defer sess.Close()
	for {
		// Outside of a transaction: wait for whatever comes first.
		fetches := sess.PollRecords(ctx, pollRecords)
		if ctx.Err() != nil {
			return nil
		}
		if err := fetchError(fetches); err != nil {
			return err
		}
		if fetches.NumRecords() == 0 {
			continue
		}
		if err := transact(ctx, sess, o, fetches); err != nil {
			return err
		}
	}
}

// transact produces what was fetched, and what comes until the commit is due, in one transaction.
func transact(ctx context.Context, sess *kgo.GroupTransactSession, o options, fetches kgo.Fetches) error {
	if err := sess.Begin(); err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	due, cancel := context.WithTimeout(ctx, o.commit)
	defer cancel()
	first := kgo.AbortingFirstErrPromise(sess.Client())
	for {
		fetches.EachRecord(func(order *kgo.Record) {
			sess.Produce(context.Background(), out(order, o), first.Promise())
		})
		if due.Err() != nil {
			break
		}
		fetches = sess.PollRecords(due, pollRecords)
		if err := fetchError(fetches); err != nil {
			return err
		}
	}
	// SIGTERM also comes here: what was begun is committed, within a time of its own.
	ending, cancelEnd := context.WithTimeout(context.Background(), endPatience)
	defer cancelEnd()
	// Not committed means aborted, after a rebalance: the session stands at the committed offsets again.
	if _, err := sess.End(ending, first.Err() == nil); err != nil {
		return fmt.Errorf("end: %w", err)
	}
	return nil
}

func fetchError(fetches kgo.Fetches) error {
	for _, found := range fetches.Errors() {
		if !errors.Is(found.Err, context.DeadlineExceeded) && !errors.Is(found.Err, context.Canceled) {
			return fmt.Errorf("fetch %s[%d]: %w", found.Topic, found.Partition, found.Err)
		}
	}
	return nil
}

// out is the record that an order becomes: same key, partition and timestamp, three source headers behind its own.
func out(order *kgo.Record, o options) *kgo.Record {
	value, reason := enrich(order.Key, order.Value)
	topic, headers := o.output, make([]kgo.RecordHeader, len(order.Headers), len(order.Headers)+4)
	copy(headers, order.Headers)
	if reason != "" {
		topic, value = o.deadLetter, order.Value
		headers = append(headers, kgo.RecordHeader{Key: "__streams.errors.reason", Value: []byte(reason)})
	}
	headers = append(headers,
		kgo.RecordHeader{Key: "source.topic", Value: []byte(order.Topic)},
		kgo.RecordHeader{Key: "source.partition", Value: strconv.AppendInt(nil, int64(order.Partition), 10)},
		kgo.RecordHeader{Key: "source.offset", Value: strconv.AppendInt(nil, order.Offset, 10)},
	)
	return &kgo.Record{
		Topic: topic, Partition: order.Partition, Key: order.Key, Value: value,
		Headers: headers, Timestamp: order.Timestamp,
	}
}
