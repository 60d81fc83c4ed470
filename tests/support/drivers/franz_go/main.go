// franz-go behind the line protocol of tests/clients/logins/foreign.py.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

const secondsMax = 20 * time.Second

func mechanism(name, user, password, token string) sasl.Mechanism {
	switch name {
	case "PLAIN":
		return plain.Auth{User: user, Pass: password}.AsMechanism()
	case "SCRAM-SHA-256":
		return scram.Auth{User: user, Pass: password, IsToken: token != ""}.AsSha256Mechanism()
	case "SCRAM-SHA-512":
		return scram.Auth{User: user, Pass: password, IsToken: token != ""}.AsSha512Mechanism()
	case "OAUTHBEARER":
		return oauth.Auth{Token: token}.AsMechanism()
	}
	return nil
}

func tlsConfig(trusted, pem string) (*tls.Config, error) {
	text, err := os.ReadFile(trusted)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	config.RootCAs.AppendCertsFromPEM(text)
	if pem != "" {
		pair, err := tls.LoadX509KeyPair(pem, pem)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

func produceAndConsume(fields []string) (string, error) {
	address, name, user, password, token := fields[0], fields[1], fields[2], fields[3], fields[4]
	trusted, pem, topic, value := fields[5], fields[6], fields[7], fields[8]
	config, err := tlsConfig(trusted, pem)
	if err != nil {
		return "", err
	}
	options := []kgo.Opt{kgo.SeedBrokers(address), kgo.DialTLSConfig(config), kgo.RequestRetries(0)}
	if chosen := mechanism(name, user, password, token); chosen != nil {
		options = append(options, kgo.SASL(chosen))
	}
	ctx, cancel := context.WithTimeout(context.Background(), secondsMax)
	defer cancel()
	producer, err := kgo.NewClient(append(options, kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
	if err != nil {
		return "", err
	}
	defer producer.Close()
	if err := producer.Ping(ctx); err != nil {
		return "", err
	}
	record := &kgo.Record{Topic: topic, Partition: 0, Value: []byte(value)}
	if err := producer.ProduceSync(ctx, record).FirstErr(); err != nil {
		return "", err
	}
	from := map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().At(record.Offset)}}
	consumer, err := kgo.NewClient(append(options, kgo.ConsumePartitions(from))...)
	if err != nil {
		return "", err
	}
	defer consumer.Close()
	fetches := consumer.PollRecords(ctx, 1)
	if err := fetches.Err(); err != nil {
		return "", err
	}
	return string(fetches.Records()[0].Value), nil
}

// What a program tells errors by: franz-go's own, and those of Go's standard library.
func class(err error) string {
	var known *kerr.Error
	if errors.As(err, &known) {
		return "kerr." + known.Message
	}
	var alert tls.AlertError
	if errors.As(err, &alert) {
		return "tls.AlertError"
	}
	var remote *net.OpError
	if errors.As(err, &remote) {
		return "net.OpError " + remote.Op
	}
	return fmt.Sprintf("%T", err)
}

func main() {
	input := bufio.NewScanner(os.Stdin)
	input.Buffer(nil, 1<<20)
	for input.Scan() {
		value, err := produceAndConsume(strings.Split(input.Text(), "\t"))
		if err != nil {
			text := strings.NewReplacer("\n", " ", "\t", " ").Replace(err.Error())
			fmt.Printf("refused\t%s\t%s\n", class(err), text)
		} else {
			fmt.Printf("ok\t%s\n", value)
		}
	}
}
