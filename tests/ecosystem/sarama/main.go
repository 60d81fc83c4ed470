// sarama behind the commands of tests/ecosystem/copying.py.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/IBM/sarama"
)

const (
	partitions           = 3
	recordsOfTransaction = 100
	retries              = 10_000 // as long as the test waits
	pause                = 100 * time.Millisecond
)

func settings() *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.V4_1_0_0
	config.Metadata.Retry.Max = retries
	config.Metadata.Retry.Backoff = pause
	config.Producer.Idempotent = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Retry.Max = retries
	config.Producer.Retry.Backoff = pause
	config.Producer.Return.Successes = true
	config.Net.MaxOpenRequests = 1
	return config
}

func produce(address, topic string) error {
	config := settings()
	config.Producer.Partitioner = sarama.NewManualPartitioner
	producer, err := sarama.NewAsyncProducer([]string{address}, config)
	if err != nil {
		return err
	}
	defer producer.AsyncClose()
	sent := make(chan int, 1)
	go func() {
		lines := bufio.NewScanner(os.Stdin)
		count := 0
		for ; lines.Scan(); count++ {
			producer.Input() <- &sarama.ProducerMessage{
				Topic:     topic,
				Partition: int32(count % partitions),
				Value:     sarama.StringEncoder(lines.Text()),
			}
		}
		sent <- count
	}()
	count := -1 // as long as it is unknown
	for stored := 0; stored != count; {
		select {
		case count = <-sent:
		case <-producer.Successes():
			stored++
		case err := <-producer.Errors():
			return err
		}
	}
	return nil
}

// A member of the group, with a transactional producer for each partition it has.
type copier struct {
	address, to, group string
}

func (*copier) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (*copier) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (c *copier) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	config := settings()
	config.Producer.Transaction.ID = fmt.Sprintf("%s-%d", c.group, claim.Partition())
	config.Producer.Return.Successes = false
	producer, err := sarama.NewAsyncProducer([]string{c.address}, config)
	if err != nil {
		return err
	}
	go func() {
		for range producer.Errors() { // A commit says so too.
		}
	}()
	defer producer.Close()
	member := sarama.NewConsumerGroupMetadataFromSession(session, c.group, nil)
	for {
		select {
		case message, isOpen := <-claim.Messages():
			if !isOpen {
				return nil
			}
			if err := c.copy(producer, member, claim, message); err != nil {
				// The next session begins at the committed offsets.
				_ = producer.AbortTxn()
				return err
			}
		case <-session.Context().Done():
			return nil
		}
	}
}

// Copies the message and those that are there already, in one transaction.
func (c *copier) copy(
	producer sarama.AsyncProducer,
	member *sarama.ConsumerGroupMetadata,
	claim sarama.ConsumerGroupClaim,
	message *sarama.ConsumerMessage,
) error {
	if err := producer.BeginTxn(); err != nil {
		return err
	}
	last := message
	for count := 1; message != nil; count++ {
		producer.Input() <- &sarama.ProducerMessage{Topic: c.to, Value: sarama.ByteEncoder(message.Value)}
		last, message = message, nil
		if count < recordsOfTransaction {
			select {
			case message = <-claim.Messages():
			default:
			}
		}
	}
	if err := producer.AddMessageToTxnWithGroupMetadata(last, member, nil); err != nil {
		return err
	}
	return producer.CommitTxn()
}

func copyForEver(address, from, to, group string) error {
	config := settings()
	config.Consumer.IsolationLevel = sarama.ReadCommitted
	config.Consumer.Offsets.AutoCommit.Enable = false
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	var member sarama.ConsumerGroup
	for {
		var err error
		if member == nil {
			member, err = sarama.NewConsumerGroup([]string{address}, group, config)
		}
		if err == nil {
			err = member.Consume(context.Background(), []string{from}, &copier{address, to, group})
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			time.Sleep(pause)
		}
	}
}

func run(arguments []string) error {
	switch {
	case len(arguments) == 3 && arguments[0] == "produce":
		return produce(arguments[1], arguments[2])
	case len(arguments) == 5 && arguments[0] == "copy":
		return copyForEver(arguments[1], arguments[2], arguments[3], arguments[4])
	}
	return fmt.Errorf("no such command: %s", strings.Join(arguments, " "))
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
