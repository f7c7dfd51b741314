import io.debezium.embedded.Connect;
import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.RecordChangeEvent;
import io.debezium.engine.format.ChangeEventFormat;
import io.debezium.engine.format.Json;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.InputStream;
import java.io.ObjectOutputStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.connect.source.SourceRecord;

/**
 * Counts the events that Debezium's embedded engine gives from a place of the log on, then ends.
 *
 * <p>Arguments: a properties file with the engine's settings and some of our own: `count.events`
 * (how many to wait for), `count.json` (true: as JSON text), `count.file`, `count.offset` and
 * `count.gtids` (where to begin; without a file the engine begins as its settings say). Prints one line: events of the first hand-over, milliseconds until then, events
 * after it, milliseconds for those, characters of all values.
 */
public final class Count {
    private final long wanted;
    private final long began = System.nanoTime();
    private long firstAt;
    private long first;
    private long events;
    private long characters;

    private Count(long wanted) {
        this.wanted = wanted;
    }

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        try (InputStream in = new FileInputStream(arguments[0])) {
            settings.load(in);
        }
        if (settings.getProperty("count.file") != null) {
            writeOffset(settings);
        }
        Count count = new Count(Long.parseLong(settings.getProperty("count.events")));
        boolean json = Boolean.parseBoolean(settings.getProperty("count.json"));
        try (DebeziumEngine<?> engine = json ? count.asJson(settings) : count.plain(settings)) {
            engine.run();
        }
        System.exit(1); // an engine that ends by itself has failed; its log says why
    }

    /** Leaves a stored offset, as if an earlier run had stopped there. */
    private static void writeOffset(Properties settings) throws Exception {
        String prefix = settings.getProperty("topic.prefix");
        String name = settings.getProperty("name");
        String key = "[\"" + name + "\",{\"server\":\"" + prefix + "\"}]";
        String value =
                "{\"file\":\"" + settings.getProperty("count.file")
                        + "\",\"pos\":" + settings.getProperty("count.offset")
                        + ",\"gtids\":\"" + settings.getProperty("count.gtids") + "\"}";
        Map<byte[], byte[]> offsets = new HashMap<>();
        offsets.put(bytes(key), bytes(value));
        String file = settings.getProperty("offset.storage.file.filename");
        try (ObjectOutputStream out = new ObjectOutputStream(new FileOutputStream(file))) {
            out.writeObject(offsets);
        }
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private DebeziumEngine<?> plain(Properties settings) {
        return DebeziumEngine.create(ChangeEventFormat.of(Connect.class))
                .using(settings)
                .notifying(
                        (List<RecordChangeEvent<SourceRecord>> records,
                                DebeziumEngine.RecordCommitter<RecordChangeEvent<SourceRecord>> committer) -> {
                            for (RecordChangeEvent<SourceRecord> record : records) {
                                committer.markProcessed(record);
                            }
                            committer.markBatchFinished();
                            note(records.size());
                        })
                .build();
    }

    private DebeziumEngine<?> asJson(Properties settings) {
        return DebeziumEngine.create(Json.class)
                .using(settings)
                .notifying(
                        (List<ChangeEvent<String, String>> records,
                                DebeziumEngine.RecordCommitter<ChangeEvent<String, String>> committer) -> {
                            for (ChangeEvent<String, String> record : records) {
                                characters += record.value() == null ? 0 : record.value().length();
                                committer.markProcessed(record);
                            }
                            committer.markBatchFinished();
                            note(records.size());
                        })
                .build();
    }

    private synchronized void note(int size) {
        long now = System.nanoTime();
        if (events == 0) {
            firstAt = now;
            first = size;
        }
        events += size;
        if (events >= wanted) {
            System.out.println(
                    first + " " + (firstAt - began) / 1_000_000 + " " + (events - first) + " "
                            + (now - firstAt) / 1_000_000 + " " + characters);
            System.out.flush();
            Runtime.getRuntime().halt(0);
        }
    }
}
