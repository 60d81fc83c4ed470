import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.record.CompressionType;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.common.record.Record;
import org.apache.kafka.common.record.RecordBatch;
import org.apache.kafka.common.record.SimpleRecord;
import org.apache.kafka.common.utils.BufferSupplier;
import org.apache.kafka.common.utils.CloseableIterator;

/** Reads a file of batches and writes its records anew, one batch a codec: DIRECTORY/name.in to name.codec.out. */
public class JavaRecords {
    public static void main(String[] arguments) throws Exception {
        Path directory = Path.of(arguments[0]);
        for (int index = 1; index < arguments.length; index++) {
            String name = arguments[index];
            SimpleRecord[] records = read(Files.readAllBytes(directory.resolve(name + ".in")));
            for (CompressionType codec : CompressionType.values()) {
                MemoryRecords written = MemoryRecords.withRecords(Compression.of(codec).build(), records);
                ByteBuffer buffer = written.buffer();
                byte[] bytes = new byte[buffer.remaining()];
                buffer.get(bytes);
                Files.write(directory.resolve(name + "." + codec.name + ".out"), bytes);
            }
        }
    }

    private static SimpleRecord[] read(byte[] data) {
        List<SimpleRecord> records = new ArrayList<>();
        long expected = 0;
        for (RecordBatch batch : MemoryRecords.readableRecords(ByteBuffer.wrap(data)).batches()) {
            batch.ensureValid();
            try (CloseableIterator<Record> iterator = batch.streamingIterator(BufferSupplier.create())) {
                while (iterator.hasNext()) {
                    Record record = iterator.next();
                    if (record.offset() != expected++)
                        throw new IllegalStateException("offset " + record.offset());
                    records.add(new SimpleRecord(record.timestamp(), record.key(), record.value(), record.headers()));
                }
            }
        }
        return records.toArray(new SimpleRecord[0]);
    }
}
