// Apache Kafka's Java client under ACLs. Reads lines of address, action, topic, group or transactional
// id, separated by tabs; answers each with "ok", or with the class of the error.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.serialization.*;

public class AclDriver {
    static final int SECONDS_MAX = 20;

    static KafkaProducer<String, String> producer(String address, Map<String, Object> more) {
        Map<String, Object> config = new HashMap<>(more);
        config.put("bootstrap.servers", address);
        config.put("max.block.ms", 1000 * SECONDS_MAX);
        return new KafkaProducer<>(config, new StringSerializer(), new StringSerializer());
    }

    static void send(KafkaProducer<String, String> producer, String topic) throws Exception {
        producer.send(new ProducerRecord<>(topic, 0, null, "java")).get(SECONDS_MAX, TimeUnit.SECONDS);
    }

    static void produce(String address, String topic) throws Exception {
        try (var producer = producer(address, Map.of())) {
            send(producer, topic);
        }
    }

    static void transact(String address, String topic, String id) throws Exception {
        try (var producer = producer(address, Map.of("transactional.id", id))) {
            producer.initTransactions();
            producer.beginTransaction();
            send(producer, topic);
            producer.commitTransaction();
        }
    }

    static void consume(String address, String topic, String group) {
        Map<String, Object> config = new HashMap<>();
        config.put("bootstrap.servers", address);
        config.put("group.id", group);
        config.put("auto.offset.reset", "earliest");
        var strings = new StringDeserializer();
        try (var consumer = new KafkaConsumer<>(config, strings, strings)) {
            consumer.subscribe(List.of(topic));
            long end = System.nanoTime() + SECONDS_MAX * 1_000_000_000L;
            while (System.nanoTime() < end) {
                if (!consumer.poll(Duration.ofMillis(100)).isEmpty()) {
                    consumer.commitSync();
                    return;
                }
            }
        }
        throw new IllegalStateException("no record came");
    }

    public static void main(String[] arguments) throws Exception {
        var input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] f = line.split("\t", -1);
            String answer = "ok";
            try {
                switch (f[1]) {
                    case "produce" -> produce(f[0], f[2]);
                    case "transact" -> transact(f[0], f[2], f[3]);
                    default -> consume(f[0], f[2], f[3]);
                }
            } catch (Exception e) {
                Throwable error = e instanceof ExecutionException ? e.getCause() : e;
                // A producer that has failed before it is asked to send wraps the error.
                while (error.getClass() == KafkaException.class && error.getCause() != null) {
                    error = error.getCause();
                }
                answer = error.getClass().getSimpleName();
            }
            System.out.println(answer);
            System.out.flush();
        }
    }
}
