// Copies a topic in transactions with Apache Kafka's Java client; every third one is aborted.

import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.*;

public class TransactionDriver {
    public static void main(String[] a) throws Exception {
        String bootstrap = a[0], source = a[1], target = a[2];
        int count = Integer.parseInt(a[3]);
        Properties config = new Properties();
        config.put("bootstrap.servers", bootstrap);
        config.put("group.id", "java-copiers");
        config.put("auto.offset.reset", "earliest");
        config.put("enable.auto.commit", false);
        config.put("isolation.level", "read_committed");
        config.put("max.poll.records", 10);
        Properties writing = new Properties();
        writing.put("bootstrap.servers", bootstrap);
        writing.put("transactional.id", "java");
        int copied = 0, transactions = 0;
        try (var consumer = new KafkaConsumer<>(config, new ByteArrayDeserializer(), new ByteArrayDeserializer());
             var producer = new KafkaProducer<>(writing, new ByteArraySerializer(), new ByteArraySerializer())) {
            producer.initTransactions();
            consumer.subscribe(List.of(source));
            while (copied < count) {
                var records = consumer.poll(Duration.ofMillis(500));
                if (records.isEmpty()) continue;
                producer.beginTransaction();
                Map<TopicPartition, OffsetAndMetadata> ends = new HashMap<>();
                for (var record : records) {
                    producer.send(new ProducerRecord<>(target, record.partition(), record.key(), record.value()));
                    ends.put(new TopicPartition(source, record.partition()), new OffsetAndMetadata(record.offset() + 1));
                }
                producer.sendOffsetsToTransaction(ends, consumer.groupMetadata());
                if (++transactions % 3 == 0) {
                    producer.flush();
                    producer.abortTransaction();
                    Map<TopicPartition, Long> first = new HashMap<>();
                    for (var record : records)
                        first.merge(new TopicPartition(source, record.partition()), record.offset(), Math::min);
                    first.forEach(consumer::seek);
                } else {
                    producer.commitTransaction();
                    copied += records.count();
                }
            }
        }
        System.out.println("copied " + copied + " in " + transactions);
    }
}
