import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Json;
import java.io.FileOutputStream;
import java.io.ObjectOutputStream;
import java.io.PrintStream;
import java.io.Reader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;

/**
 * Writes the events that Debezium's embedded engine gives from a place of the log on, then ends.
 *
 * <p>Arguments: properties files, one for each engine; the engines run at once. Beside the engine's own
 * settings each has `events.last` (the topic whose first event is the last one), `events.file`, `events.offset` and `events.gtids`
 * (where to begin) and `events.to` (the file to write). One line for each event: topic, tab, key, tab, value.
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
            Thread one = new Thread(() -> run(settings));
            one.start();
            running.add(one);
        }
        for (Thread one : running) {
            one.join();
        }
        System.exit(0);
    }

    private static void run(Properties settings) {
        List<String> lines = new ArrayList<>();
        String last = settings.getProperty("events.last") + "\t";
        Object done = new Object();
        DebeziumEngine<ChangeEvent<String, String>> made =
                DebeziumEngine.create(Json.class)
                        .using(settings)
                        .notifying((List<ChangeEvent<String, String>> records,
                                DebeziumEngine.RecordCommitter<ChangeEvent<String, String>> committer) -> {
                            for (ChangeEvent<String, String> record : records) {
                                synchronized (done) {
                                    lines.add(record.destination() + "\t" + record.key() + "\t" + record.value());
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
