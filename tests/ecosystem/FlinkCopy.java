import java.io.File;
import java.io.FileInputStream;
import java.util.Arrays;
import java.util.Comparator;
import java.util.Properties;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/** Copies topic "from" to topic "to" exactly once; goes on from its newest checkpoint. */
public final class FlinkCopy {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        try (FileInputStream file = new FileInputStream(arguments[0])) {
            settings.load(file);
        }
        File folder = new File(settings.getProperty("checkpoints"));
        Configuration configuration = new Configuration();
        configuration.setString("execution.checkpointing.interval", "500ms");
        configuration.setString("execution.checkpointing.storage", "filesystem");
        configuration.setString("execution.checkpointing.dir", folder.toURI().toString());
        configuration.setString("execution.checkpointing.externalized-checkpoint-retention", "RETAIN_ON_CANCELLATION");
        // Failures of the node restart the job within this process.
        configuration.setString("restart-strategy.type", "fixed-delay");
        configuration.setString("restart-strategy.fixed-delay.attempts", "1000");
        configuration.setString("restart-strategy.fixed-delay.delay", "1s");
        String newest = newest(folder);
        if (newest != null) {
            configuration.setString("execution.state-recovery.path", newest);
        }
        System.err.println("begins at checkpoint " + newest);
        StreamExecutionEnvironment environment = StreamExecutionEnvironment.getExecutionEnvironment(configuration);
        environment.setParallelism(2);
        String servers = settings.getProperty("bootstrap.servers");
        KafkaSource<String> source = KafkaSource.<String>builder()
                .setBootstrapServers(servers)
                .setTopics("from")
                .setGroupId("flink")
                .setStartingOffsets(OffsetsInitializer.earliest())
                .setValueOnlyDeserializer(new SimpleStringSchema())
                .build();
        KafkaSink<String> sink = KafkaSink.<String>builder()
                .setBootstrapServers(servers)
                .setRecordSerializer(KafkaRecordSerializationSchema.builder()
                        .setTopic("to")
                        .setValueSerializationSchema(new SimpleStringSchema())
                        .build())
                .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
                .setTransactionalIdPrefix("flink")
                .setProperty("transaction.timeout.ms", "120000")
                .build();
        environment.fromSource(source, WatermarkStrategy.noWatermarks(), "from").uid("from").sinkTo(sink).uid("to");
        environment.execute("copy");
    }

    /** Returns the newest whole checkpoint, null if there is none. */
    private static String newest(File folder) {
        File[] jobs = folder.listFiles(File::isDirectory);
        if (jobs == null) {
            return null;
        }
        return Arrays.stream(jobs)
                .flatMap(job -> Arrays.stream(job.listFiles((in, name) -> name.startsWith("chk-"))))
                .filter(checkpoint -> new File(checkpoint, "_metadata").exists())
                .max(Comparator.comparing(checkpoint -> new File(checkpoint, "_metadata").lastModified()))
                .map(checkpoint -> checkpoint.toURI().toString())
                .orElse(null);
    }
}
