// Apache Kafka's Java client behind the line protocol of lines.py.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.Reader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.Future;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.*;

public class JavaDriver {
    static final Map<String, String> ASSIGNORS = Map.of(
        "range", "org.apache.kafka.clients.consumer.RangeAssignor",
        "roundrobin", "org.apache.kafka.clients.consumer.RoundRobinAssignor",
        "sticky", "org.apache.kafka.clients.consumer.StickyAssignor",
        "cooperative-sticky", "org.apache.kafka.clients.consumer.CooperativeStickyAssignor");

    static byte[] decode(String text) {
        return text.equals("~") ? null : Base64.getDecoder().decode(text);
    }

    static String encode(byte[] data) {
        return data == null ? "~" : Base64.getEncoder().encodeToString(data);
    }

    /** How to connect, with the settings of the file that CLIENT_PROPERTIES names. */
    static Properties connection(String bootstrap) throws Exception {
        Properties config = new Properties();
        String path = System.getenv("CLIENT_PROPERTIES");
        if (path != null) {
            try (Reader file = Files.newBufferedReader(Path.of(path))) {
                config.load(file);
            }
        }
        config.put("bootstrap.servers", bootstrap);
        return config;
    }

    static void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    static void produce(String bootstrap, String topic, String codec, String idempotent) throws Exception {
        Properties config = connection(bootstrap);
        config.put("compression.type", codec);
        config.put("enable.idempotence", idempotent.equals("1"));
        config.put("acks", "all");
        config.put("max.request.size", 20_000_000);
        config.put("buffer.memory", 64_000_000L);
        config.put("linger.ms", 5);
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (var producer = new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer())) {
            var input = new BufferedReader(new InputStreamReader(System.in));
            for (String line = input.readLine(); line != null; line = input.readLine()) {
                String[] f = line.split("\t", -1);
                int partition = Integer.parseInt(f[0]);
                long timestamp = Long.parseLong(f[1]);
                var record = new ProducerRecord<>(topic, partition < 0 ? null : partition,
                    timestamp < 0 ? null : timestamp, decode(f[2]), decode(f[3]));
                for (String pair : f[4].split(";")) {
                    if (pair.isEmpty()) continue;
                    int at = pair.indexOf('=');
                    record.headers().add(pair.substring(0, at), decode(pair.substring(at + 1)));
                }
                sent.add(producer.send(record));
            }
            for (var future : sent) {
                RecordMetadata done = future.get();
                say("acked " + done.partition() + " " + done.offset());
            }
        }
    }

    static void consume(String bootstrap, String topic, String group, String assignor, String instance,
                        String sessionMs) throws Exception {
        Properties config = connection(bootstrap);
        config.put("group.id", group);
        config.put("auto.offset.reset", "earliest");
        config.put("enable.auto.commit", false);
        if (ASSIGNORS.containsKey(assignor)) {
            config.put("partition.assignment.strategy", ASSIGNORS.get(assignor));
            config.put("session.timeout.ms", Integer.parseInt(sessionMs));
            config.put("heartbeat.interval.ms", 500);
        } else {
            // An assignor of the server (KIP-848), which also sets the time-outs.
            config.put("group.protocol", "consumer");
            config.put("group.remote.assignor", assignor);
        }
        config.put("max.partition.fetch.bytes", 20_000_000);
        if (!instance.equals("-")) config.put("group.instance.id", instance);
        Thread stdin = new Thread(() -> {
            try {
                while (System.in.read() >= 0) { }
            } catch (Exception ignored) { }
        });
        stdin.setDaemon(true);
        stdin.start();
        TreeSet<Integer> owned = new TreeSet<>();
        try (var consumer = new KafkaConsumer<>(config, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(List.of(topic), new ConsumerRebalanceListener() {
                public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
                    partitions.forEach(p -> owned.remove(p.partition()));
                    told();
                }

                public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
                    partitions.forEach(p -> owned.add(p.partition()));
                    told();
                }

                void told() {
                    say("assigned " + owned.stream().map(String::valueOf).collect(Collectors.joining(",")));
                }
            });
            while (stdin.isAlive()) {
                var records = consumer.poll(Duration.ofMillis(100));
                for (var record : records) {
                    List<String> headers = new ArrayList<>();
                    for (Header header : record.headers()) headers.add(header.key() + "=" + encode(header.value()));
                    say("record " + record.offset() + " " + String.join("\t", String.valueOf(record.partition()),
                        String.valueOf(record.timestamp()), encode(record.key()), encode(record.value()),
                        String.join(";", headers)));
                }
                if (!records.isEmpty()) consumer.commitSync();
            }
        }
    }

    // A member of a share group that does with each record what its value says.
    static void share(String bootstrap, String topic, String group, String mode) throws Exception {
        Properties config = connection(bootstrap);
        config.put("group.id", group);
        config.put("share.acknowledgement.mode", mode);
        Thread stdin = new Thread(() -> {
            try {
                while (System.in.read() >= 0) { }
            } catch (Exception ignored) { }
        });
        stdin.setDaemon(true);
        stdin.start();
        try (var consumer = new KafkaShareConsumer<>(config, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(List.of(topic));
            while (stdin.isAlive()) {
                var records = consumer.poll(Duration.ofMillis(100));
                for (var record : records) {
                    int count = record.deliveryCount().orElse((short) 0);
                    say("delivered " + record.partition() + " " + record.offset() + " " + count + " "
                        + encode(record.value()));
                    if (mode.equals("implicit")) continue;
                    String value = new String(record.value());
                    if (value.startsWith("reject")) consumer.acknowledge(record, AcknowledgeType.REJECT);
                    else if (value.startsWith("release") && count < 2) consumer.acknowledge(record, AcknowledgeType.RELEASE);
                    else if (!value.startsWith("hold")) consumer.acknowledge(record, AcknowledgeType.ACCEPT);
                    else Thread.sleep(3_600_000);
                }
                for (var done : consumer.commitSync().entrySet())
                    if (done.getValue().isPresent()) say("error " + done);
                    else say("committed " + done.getKey().partition());
            }
        }
    }

    public static void main(String[] a) throws Exception {
        if (a[0].equals("produce")) produce(a[1], a[2], a[3], a[4]);
        else if (a[0].equals("share")) share(a[1], a[2], a[3], a[4]);
        else consume(a[1], a[2], a[3], a[4], a[5], a[6]);
    }
}
