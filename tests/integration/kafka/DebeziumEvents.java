import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Avro;
import io.debezium.engine.format.Json;
import io.debezium.engine.format.SerializationFormat;
import java.io.FileOutputStream;
import java.io.ObjectOutputStream;
import java.io.PrintStream;
import java.io.Reader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.function.Function;

/**
 * Writes the events that Debezium's embedded engine gives from a place of the log on, then ends.
 *
 * <p>Arguments: properties files, one for each engine; the engines run at once. Beside the engine's own
 * settings each has `events.last` (the topic whose first event is the last one), `events.file`, `events.offset` and `events.gtids`
 * (where to begin) and `events.to` (the file to write). One line for each event: topic, tab, key, tab, value; with `events.format` =
 * `avro` key and value are hexadecimal.
 */
public final class DebeziumEvents {
    public static void main(String[] arguments) throws Exception {
        List<Thread> running = new ArrayList<>();
        for (String argument : arguments) {
            Properties settings = new Properties();
            try (Reader in = Files.newBufferedReader(Path.of(argument))) {
                settings.load(in);
            }
            writeOffset(settings);
            boolean isAvro = "avro".equals(settings.getProperty("events.format"));
            Thread one = new Thread(() -> {
                if (isAvro) {
                    run(settings, Avro.class, (byte[] data) -> HexFormat.of().formatHex(data));
                } else {
                    run(settings, Json.class, (String text) -> text);
                }
            });
            one.start();
            running.add(one);
        }
        for (Thread one : running) {
            one.join();
        }
        System.exit(0);
    }

    private static <T, F extends SerializationFormat<T>> void run(
            Properties settings, Class<F> format, Function<T, String> shown) {
        List<String> lines = new ArrayList<>();
        String last = settings.getProperty("events.last") + "\t";
        Object done = new Object();
        DebeziumEngine<ChangeEvent<T, T>> made =
                DebeziumEngine.create(format)
                        .using(settings)
                        .notifying((List<ChangeEvent<T, T>> records,
                                DebeziumEngine.RecordCommitter<ChangeEvent<T, T>> committer) -> {
                            for (ChangeEvent<T, T> record : records) {
                                String key = record.key() == null ? "null" : shown.apply(record.key());
                                String value = record.value() == null ? "null" : shown.apply(record.value());
                                synchronized (done) {
                                    lines.add(record.destination() + "\t" + key + "\t" + value);
                                }
                                committer.markProcessed(record);
                            }
                            committer.markBatchFinished();
                            synchronized (done) {
                                done.notifyAll();
                            }
                        })
                        .using((success, message, error) -> {
                            if (!success) {
                                System.err.println(message);
                                if (error != null) {
                                    error.printStackTrace();
                                }
                                System.exit(1);
                            }
                        })
                        .build();
        Thread engine = new Thread(made);
        engine.setDaemon(true);
        engine.start();
        try {
            synchronized (done) {
                while (lines.stream().noneMatch(line -> line.startsWith(last))) {
                    done.wait(1000);
                }
            }
            try (PrintStream out = new PrintStream(settings.getProperty("events.to"), StandardCharsets.UTF_8)) {
                lines.forEach(out::println);
            }
        } catch (Exception error) {
            error.printStackTrace();
            System.exit(1);
        }
    }

    /** Leaves a stored offset, as if an earlier run had stopped there. */
    private static void writeOffset(Properties settings) throws Exception {
        String key = "[\"" + settings.getProperty("name") + "\",{\"server\":\""
                + settings.getProperty("topic.prefix") + "\"}]";
        String value = "{\"file\":\"" + settings.getProperty("events.file")
                + "\",\"pos\":" + settings.getProperty("events.offset")
                + ",\"gtids\":\"" + settings.getProperty("events.gtids") + "\"}";
        Map<byte[], byte[]> offsets = new HashMap<>();
        offsets.put(key.getBytes(StandardCharsets.UTF_8), value.getBytes(StandardCharsets.UTF_8));
        String file = settings.getProperty("offset.storage.file.filename");
        try (ObjectOutputStream out = new ObjectOutputStream(new FileOutputStream(file))) {
            out.writeObject(offsets);
        }
    }
}
