// In place of the class of this name among Kafka Streams' integration tests: nodes of ours instead
// of Kafka's brokers.
//
// -Dtidelog.node      the command that starts a node, its words separated by \n
// -Dtidelog.settings  the names of the settings that a node knows, separated by commas
// -Dtidelog.folder    where nodes have their data, and their logs

package org.apache.kafka.streams.integration.utils;

import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.*;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ListTopicsOptions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;
import org.apache.kafka.server.util.MockTime;
import org.apache.kafka.test.TestUtils;

public class EmbeddedKafkaCluster {
    private static final long TOPIC_MS_MAX = 30_000L;
    private static final Set<String> KNOWN =
        Set.of(System.getProperty("tidelog.settings").split(","));
    // What the class of Kafka's has for every cluster, as far as a node knows it; and a default of Kafka 3,
    // for tests that write records of the day after tomorrow.
    private static final Map<String, String> DEFAULTS = Map.of(
        "group.min.session.timeout.ms", "1",
        "group.initial.rebalance.delay.ms", "0",
        "offsets.topic.num.partitions", "5",
        "transaction.state.log.num.partitions", "5",
        "log.message.timestamp.after.max.ms", String.valueOf(Long.MAX_VALUE),
        "auto.create.topics.enable", "true");

    public final MockTime time;
    private final int brokerCount;
    private final Properties config;
    private final List<Properties> configs; // of each broker, or empty
    private final List<Process> nodes = new ArrayList<>();
    private final List<Integer> ports = new ArrayList<>();

    public EmbeddedKafkaCluster(int brokerCount) {
        this(brokerCount, new Properties());
    }

    public EmbeddedKafkaCluster(int brokerCount, Properties config) {
        this(brokerCount, config, System.currentTimeMillis());
    }

    public EmbeddedKafkaCluster(int brokerCount, Properties config, long startMs) {
        this(brokerCount, config, List.of(), startMs);
    }

    public EmbeddedKafkaCluster(int brokerCount, Properties config, List<Properties> configs) {
        this(brokerCount, config, configs, System.currentTimeMillis());
    }

    public EmbeddedKafkaCluster(int brokerCount, Properties config, List<Properties> configs, long startMs) {
        this(brokerCount, config, configs, startMs, System.nanoTime());
    }

    public EmbeddedKafkaCluster(
        int brokerCount, Properties config, List<Properties> configs, long startMs, long startNs) {
        this.brokerCount = brokerCount;
        this.config = config;
        this.configs = configs;
        this.time = new MockTime(startMs, startNs);
    }

    public void start() throws IOException {
        Path folder = Files.createTempDirectory(Path.of(System.getProperty("tidelog.folder")), "cluster");
        for (int number = 0; number < brokerCount; number++) {
            Map<String, String> settings = new TreeMap<>(DEFAULTS);
            add(settings, config);
            if (!configs.isEmpty()) add(settings, configs.get(number));
            launch(folder, number, settings);
        }
        for (Process node : nodes) {
            // It says one line, when it serves.
            if (new BufferedReader(new InputStreamReader(node.getInputStream())).readLine() == null)
                throw new IOException("a node ended before it served; its log is in " + folder);
        }
    }

    private static void add(Map<String, String> settings, Properties given) {
        given.forEach((name, value) -> {
            if (KNOWN.contains(name.toString())) settings.put(name.toString(), value.toString());
        });
    }

    private void launch(Path folder, int brokerId, Map<String, String> settings) throws IOException {
        int port;
        try (ServerSocket free = new ServerSocket(0)) {
            port = free.getLocalPort();
        }
        List<String> command = new ArrayList<>(List.of(System.getProperty("tidelog.node").split("\n")));
        command.addAll(List.of(
            "--stop-with-parent",
            "--broker-id", String.valueOf(brokerId),
            "--host", "127.0.0.1",
            "--port", String.valueOf(port),
            "--data-dir", folder.resolve("node-" + brokerId).toString(),
            "--metadata-store", "sqlite://" + folder.resolve("metadata.db"),
            "--object-store", "file://" + folder.resolve("objects")));
        settings.forEach((name, value) -> command.addAll(List.of("--set", name + "=" + value)));
        File log = folder.resolve("node-" + brokerId + ".log").toFile();
        nodes.add(new ProcessBuilder(command).redirectError(log).start());
        ports.add(port);
    }

    public void stop() {
        nodes.forEach(Process::destroy);
        try {
            for (Process node : nodes) {
                if (!node.waitFor(60, TimeUnit.SECONDS)) node.destroyForcibly();
            }
        } catch (InterruptedException interrupted) {
            nodes.forEach(Process::destroyForcibly);
            Thread.currentThread().interrupt();
        }
        nodes.clear();
        ports.clear();
    }

    public String bootstrapServers() {
        return ports.stream().map(port -> "127.0.0.1:" + port).collect(Collectors.joining(","));
    }

    // --- topics ---

    public void createTopics(String... topics) throws InterruptedException {
        for (String topic : topics) createTopic(topic);
    }

    public void createTopic(String topic) throws InterruptedException {
        createTopic(topic, 1, 1);
    }

    public void createTopic(String topic, int partitions, int replication) throws InterruptedException {
        createTopic(topic, partitions, replication, Map.of());
    }

    public void createTopic(String topic, int partitions, int replication, Map<String, String> settings)
        throws InterruptedException {
        NewTopic created = new NewTopic(topic, partitions, (short) replication).configs(settings);
        ask(admin -> admin.createTopics(List.of(created)).all().get());
        TestUtils.waitForCondition(
            () -> ask(admin -> admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic))
                .partitions().size() == partitions,
            TOPIC_MS_MAX, topic + " is created");
    }

    public void deleteTopic(String topic) throws InterruptedException {
        deleteTopicsAndWait(-1, topic);
    }

    public void deleteTopicAndWait(String topic) throws InterruptedException {
        deleteTopicsAndWait(TOPIC_MS_MAX, topic);
    }

    public void deleteTopics(String... topics) throws InterruptedException {
        deleteTopicsAndWait(-1, topics);
    }

    public void deleteTopicsAndWait(String... topics) throws InterruptedException {
        deleteTopicsAndWait(TOPIC_MS_MAX, topics);
    }

    public void deleteTopicsAndWait(long timeoutMs, String... topics) throws InterruptedException {
        for (String topic : topics) {
            try {
                ask(admin -> admin.deleteTopics(List.of(topic)).all().get());
            } catch (UnknownTopicOrPartitionException gone) {
                continue;
            }
        }
        if (timeoutMs > 0)
            TestUtils.waitForCondition(
                () -> Collections.disjoint(getAllTopicsInCluster(), List.of(topics)),
                timeoutMs, "topics are deleted");
    }

    public void deleteAllTopicsAndWait(long timeoutMs) throws InterruptedException {
        deleteTopicsAndWait(timeoutMs, getAllTopicsInCluster().toArray(new String[0]));
    }

    public void waitForRemainingTopics(long timeoutMs, String... topics) throws InterruptedException {
        TestUtils.waitForCondition(
            () -> getAllTopicsInCluster().equals(Set.of(topics)), timeoutMs, "other topics are gone");
    }

    public Properties getLogConfig(String topic) {
        var resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        Properties own = new Properties();
        for (ConfigEntry entry : ask(admin -> admin.describeConfigs(List.of(resource)).all().get().get(resource)).entries())
            // That a topic is diskless by the nodes' default is stored with it; Streams did not ask for it.
            if (entry.source() == ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG
                && !entry.name().equals("diskless.enable"))
                own.put(entry.name(), entry.value());
        return own;
    }

    public Set<String> getAllTopicsInCluster() {
        return ask(admin -> admin.listTopics(new ListTopicsOptions().listInternal(true)).names().get());
    }

    private interface Question<T> {
        T ask(Admin admin) throws ExecutionException, InterruptedException;
    }

    private <T> T ask(Question<T> question) {
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrapServers()))) {
            return question.ask(admin);
        } catch (ExecutionException error) {
            if (error.getCause() instanceof RuntimeException cause) throw cause;
            throw new RuntimeException(error.getCause());
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
            throw new RuntimeException(interrupted);
        }
    }
}
