import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HexFormat;
import java.util.Properties;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.Headers;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.TopologyTestDriver;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.StoreBuilder;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.ValueAndTimestamp;
import org.apache.kafka.streams.state.ValueTimestampHeaders;
import org.apache.kafka.streams.state.WindowStore;

/**
 * Kafka Streams' own window stores, driven from standard input.
 *
 * <pre>
 * java Peer.java STATE_DIRECTORY FORMAT RETAIN_DUPLICATES [COPY_TO]
 *   put     key  window start  timestamp  value  headers     (tab between; hex; headers name=hex,name=null)
 *   dump                                                     prints every entry of all() in that form
 * </pre>
 * The store is STATE_DIRECTORY/peer/0_0/win. The driver removes its state when it is closed, so the store
 * alone is closed, and copied to COPY_TO, and the process ends without closing the driver.
 */
public class Peer {
    static final HexFormat HEX = HexFormat.of();

    static class Idle implements Processor<byte[], byte[], Void, Void> {
        @Override
        public void init(final ProcessorContext<Void, Void> context) { }

        @Override
        public void process(final Record<byte[], byte[]> record) { }
    }

    static StoreBuilder<?> builder(final String format, final boolean duplicates) {
        final Duration retention = Duration.ofMillis(600_000);
        final Duration window = Duration.ofMillis(60_000);
        final Serde<byte[]> bytes = Serdes.ByteArray();
        switch (format) {
            case "plain":
                return Stores.windowStoreBuilder(
                    Stores.persistentWindowStore("win", retention, window, duplicates), bytes, bytes);
            case "timestamped":
                return Stores.timestampedWindowStoreBuilder(
                    Stores.persistentTimestampedWindowStore("win", retention, window, duplicates), bytes, bytes);
            case "timestamped_headers":
                return Stores.timestampedWindowStoreWithHeadersBuilder(
                    Stores.persistentTimestampedWindowStoreWithHeaders("win", retention, window, duplicates),
                    bytes, bytes);
            default:
                throw new IllegalArgumentException(format);
        }
    }

    static Headers headers(final String text) {
        final Headers headers = new RecordHeaders();
        for (final String each : text.isEmpty() ? new String[0] : text.split(",")) {
            final String[] parts = each.split("=", 2);
            headers.add(parts[0], parts[1].equals("null") ? null : HEX.parseHex(parts[1]));
        }
        return headers;
    }

    static String shown(final Headers headers) {
        final StringBuilder text = new StringBuilder();
        for (final Header each : headers) {
            text.append(text.length() == 0 ? "" : ",").append(each.key()).append("=")
                .append(each.value() == null ? "null" : HEX.formatHex(each.value()));
        }
        return text.toString();
    }

    static Object wrapped(final String format, final byte[] value, final long timestamp, final Headers headers) {
        switch (format) {
            case "plain":
                return value;
            case "timestamped":
                return ValueAndTimestamp.make(value, timestamp);
            default:
                return ValueTimestampHeaders.make(value, timestamp, headers);
        }
    }

    static String shown(final Object value) {
        if (value instanceof ValueTimestampHeaders) {
            final ValueTimestampHeaders<byte[]> found = (ValueTimestampHeaders<byte[]>) value;
            return found.timestamp() + "\t" + HEX.formatHex(found.value()) + "\t" + shown(found.headers());
        }
        if (value instanceof ValueAndTimestamp) {
            final ValueAndTimestamp<byte[]> found = (ValueAndTimestamp<byte[]>) value;
            return found.timestamp() + "\t" + HEX.formatHex(found.value()) + "\t";
        }
        return "\t" + HEX.formatHex((byte[]) value) + "\t";
    }

    static void copy(final java.nio.file.Path from, final java.nio.file.Path to) throws Exception {
        try (java.util.stream.Stream<java.nio.file.Path> files = java.nio.file.Files.walk(from)) {
            for (final java.nio.file.Path each : (Iterable<java.nio.file.Path>) files::iterator) {
                java.nio.file.Files.copy(each, to.resolve(from.relativize(each).toString()));
            }
        }
    }

    @SuppressWarnings("unchecked")
    public static void main(final String[] arguments) throws Exception {
        final String format = arguments[1];
        final Topology topology = new Topology();
        topology.addSource("source", "in");
        topology.addProcessor("processor", Idle::new, "source");
        topology.addStateStore(builder(format, Boolean.parseBoolean(arguments[2])), "processor");
        final Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, "peer");
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, "unused:1");
        settings.put(StreamsConfig.STATE_DIR_CONFIG, arguments[0]);
        settings.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.ByteArraySerde.class);
        settings.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.ByteArraySerde.class);
        try (TopologyTestDriver driver = new TopologyTestDriver(topology, settings)) {
            // A record fixes the context (partition, offset, headers) that a store's changelog layer asks for.
            driver.createInputTopic("in", Serdes.ByteArray().serializer(), Serdes.ByteArray().serializer())
                .pipeInput(new byte[] {1}, new byte[] {1}, 1_700_000_000_000L);
            final WindowStore<byte[], Object> store =
                (WindowStore<byte[], Object>) driver.getAllStateStores().get("win");
            final BufferedReader lines =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                final String[] words = line.split("\t", -1);
                if (words[0].equals("put")) {
                    final byte[] value = words[4].equals("null") ? null : HEX.parseHex(words[4]);
                    store.put(
                        HEX.parseHex(words[1]),
                        value == null
                            ? null
                            : wrapped(format, value, Long.parseLong(words[3]), headers(words[5])),
                        Long.parseLong(words[2]));
                } else {
                    try (KeyValueIterator<Windowed<byte[]>, Object> entries = store.all()) {
                        entries.forEachRemaining(entry -> System.out.println(
                            HEX.formatHex(entry.key.key()) + "\t" + entry.key.window().start() + "\t"
                                + shown(entry.value)));
                    }
                }
            }
            // Closing brings the store to disk; the driver would close it too, and then remove it.
            store.close();
            if (arguments.length > 3) {
                copy(java.nio.file.Path.of(arguments[0], "peer", "0_0", "win"), java.nio.file.Path.of(arguments[3]));
            }
            System.out.flush();
            Runtime.getRuntime().halt(0);
        }
    }
}
