// Apache Kafka's Java client behind the line protocol of tests/clients/logins/foreign.py.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import javax.security.auth.callback.Callback;
import javax.security.auth.login.AppConfigurationEntry;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.security.auth.AuthenticateCallbackHandler;
import org.apache.kafka.common.security.oauthbearer.*;
import org.apache.kafka.common.serialization.*;

public class LoginDriver {
    static final String MODULES = "org.apache.kafka.common.security.";
    static final int SECONDS_MAX = 20;

    /** Gives the client the token of its settings. */
    public static class Tokens implements AuthenticateCallbackHandler {
        String value;

        public void configure(Map<String, ?> configs, String mechanism, List<AppConfigurationEntry> entries) {
            value = (String) entries.get(0).getOptions().get("token");
        }

        public void close() { }

        public void handle(Callback[] callbacks) {
            for (Callback callback : callbacks) {
                if (callback instanceof OAuthBearerTokenCallback asked) asked.token(new Token(value));
            }
        }
    }

    record Token(String value) implements OAuthBearerToken {
        public Set<String> scope() { return Set.of(); }

        public long lifetimeMs() { return System.currentTimeMillis() + 600_000; }

        public String principalName() { return "driver"; }

        public Long startTimeMs() { return System.currentTimeMillis(); }
    }

    static Properties settings(String[] f) {
        Properties config = new Properties();
        boolean isTlsAlone = f[1].equals("SSL");
        config.put("bootstrap.servers", f[0]);
        config.put("security.protocol", isTlsAlone ? "SSL" : "SASL_SSL");
        config.put("ssl.truststore.type", "PEM");
        config.put("ssl.truststore.location", f[5]);
        if (!f[6].isEmpty()) {
            config.put("ssl.keystore.type", "PEM");
            config.put("ssl.keystore.location", f[6]);
        }
        if (isTlsAlone) return config;
        config.put("sasl.mechanism", f[1]);
        String module = switch (f[1]) {
            case "PLAIN" -> "plain.PlainLoginModule";
            case "OAUTHBEARER" -> "oauthbearer.OAuthBearerLoginModule";
            default -> "scram.ScramLoginModule";
        };
        String options = f[1].equals("OAUTHBEARER")
            ? "token=\"" + f[4] + "\""
            : "username=\"" + f[2] + "\" password=\"" + f[3] + "\"" + (f[4].isEmpty() ? "" : " tokenauth=\"true\"");
        config.put("sasl.jaas.config", MODULES + module + " required " + options + ";");
        if (f[1].equals("OAUTHBEARER")) config.put("sasl.login.callback.handler.class", Tokens.class.getName());
        return config;
    }

    static String produceAndConsume(String[] f) throws Exception {
        Properties config = settings(f);
        config.put("max.block.ms", 1000 * SECONDS_MAX);
        TopicPartition partition = new TopicPartition(f[7], 0);
        long offset;
        try (var producer = new KafkaProducer<>(config, new StringSerializer(), new StringSerializer())) {
            var sent = producer.send(new ProducerRecord<>(partition.topic(), 0, null, f[8]));
            offset = sent.get(SECONDS_MAX, TimeUnit.SECONDS).offset();
        }
        try (var consumer = new KafkaConsumer<>(config, new StringDeserializer(), new StringDeserializer())) {
            consumer.assign(List.of(partition));
            consumer.seek(partition, offset);
            long end = System.nanoTime() + SECONDS_MAX * 1_000_000_000L;
            while (System.nanoTime() < end) {
                for (var record : consumer.poll(Duration.ofMillis(100))) return record.value();
            }
        }
        throw new IllegalStateException("the record did not come back");
    }

    public static void main(String[] arguments) throws Exception {
        var input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String answer;
            try {
                answer = "ok\t" + produceAndConsume(line.split("\t", -1));
            } catch (Exception e) {
                Throwable error = e instanceof ExecutionException ? e.getCause() : e;
                String text = String.valueOf(error.getMessage()).replaceAll("\\s", " ");
                answer = "refused\t" + error.getClass().getName() + "\t" + text;
            }
            System.out.println(answer);
            System.out.flush();
        }
    }
}
