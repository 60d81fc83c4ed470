// franz-go behind the commands of tests/ecosystem/copying.py.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	recordsOfTransaction = 100
	partitions           = 3
	pause                = 100 * time.Millisecond
)

func produce(address, topic string) error {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(address),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
	)
	if err != nil {
		return err
	}
	defer client.Close()
	ctx := context.Background()
	promise := kgo.AbortingFirstErrPromise(client)
	lines := bufio.NewScanner(os.Stdin)
	for count := 0; lines.Scan(); count++ {
		record := &kgo.Record{
			Topic:     topic,
			Partition: int32(count % partitions),
			Value:     []byte(lines.Text()),
		}
		client.Produce(ctx, record, promise.Promise())
	}
	if err := client.Flush(ctx); err != nil {
		return err
	}
	return promise.Err()
}

// Copies what it is given, in transactions, until it fails.
func copyOn(address, from, to, group string) error {
	session, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(address),
		kgo.TransactionalID(group),
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(from),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.RequireStableFetchOffsets(),
		kgo.DefaultProduceTopic(to),
	)
	if err != nil {
		return err
	}
	defer session.Close()
	ctx := context.Background()
	for {
		fetches := session.PollRecords(ctx, recordsOfTransaction)
		if fetches.NumRecords() == 0 {
			continue // An error of a fetch passes: the client tries again.
		}
		if err := session.Begin(); err != nil {
			return err
		}
		promise := kgo.AbortingFirstErrPromise(session.Client())
		fetches.EachRecord(func(record *kgo.Record) {
			session.Produce(ctx, &kgo.Record{Value: record.Value}, promise.Promise())
		})
		isGood := promise.Err() == nil
		if _, err := session.End(ctx, kgo.TransactionEndTry(isGood)); err != nil {
			return err
		}
	}
}

func run(arguments []string) error {
	switch {
	case len(arguments) == 3 && arguments[0] == "produce":
		return produce(arguments[1], arguments[2])
	case len(arguments) == 5 && arguments[0] == "copy":
		for {
			err := copyOn(arguments[1], arguments[2], arguments[3], arguments[4])
			fmt.Fprintln(os.Stderr, err)
			time.Sleep(pause)
		}
	}
	return fmt.Errorf("no such command: %s", strings.Join(arguments, " "))
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
