import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.HexFormat;
import java.util.Properties;
import java.util.stream.Stream;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.Headers;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.serialization.Deserializer;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.Serializer;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.TestInputTopic;
import org.apache.kafka.streams.TestOutputTopic;
import org.apache.kafka.streams.TopologyTestDriver;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.kstream.ValueJoiner;
import org.apache.kafka.streams.processor.StateStore;
import org.apache.kafka.streams.test.TestRecord;

/**
 * Kafka Streams' own windowed join, driven from standard input; tabs between words, bytes as hex or null.
 *
 * <pre>
 * java JoinPeer.java STATE_DIRECTORY
 *   join  type  before  after  grace  emit interval    a new join; type: inner, left, outer, self
 *   L|R  key  value  timestamp  headers                 headers name=hex,name=null; prints the results, then .
 *   advance  milliseconds                               the wall clock
 *   copy  directory                                     ends the join and copies the task's directory
 * </pre>
 * A result is printed as: key  left  right  timestamp  headers.
 */
public class JoinPeer {
    static final HexFormat HEX = HexFormat.of();

    static byte[] bytes(final String text) {
        return text.equals("null") ? null : HEX.parseHex(text);
    }

    static String shown(final byte[] data) {
        return data == null ? "null" : HEX.formatHex(data);
    }

    static Headers headers(final String text) {
        final Headers headers = new RecordHeaders();
        for (final String each : text.isEmpty() ? new String[0] : text.split(",")) {
            final String[] parts = each.split("=", 2);
            headers.add(parts[0], bytes(parts[1]));
        }
        return headers;
    }

    static String shown(final Headers headers) {
        final StringBuilder text = new StringBuilder();
        for (final Header each : headers) {
            text.append(text.length() == 0 ? "" : ",").append(each.key()).append("=").append(shown(each.value()));
        }
        return text.toString();
    }

    static void copy(final Path from, final Path to) throws Exception {
        try (Stream<Path> files = Files.walk(from)) {
            for (final Path each : (Iterable<Path>) files::iterator) {
                final String name = each.getFileName().toString();
                if (!name.startsWith("LOG") && !name.equals("LOCK")) {
                    Files.copy(each, to.resolve(from.relativize(each).toString()));
                }
            }
        }
    }

    static TopologyTestDriver driver(final Path state, final String[] words) {
        final String type = words[1];
        final Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, "peer");
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, "unused:1");
        settings.put(StreamsConfig.STATE_DIR_CONFIG, state.toString());
        settings.put(StreamsConfig.TOPOLOGY_OPTIMIZATION_CONFIG, StreamsConfig.OPTIMIZE);
        settings.put(
            StreamsConfig.InternalConfig.EMIT_INTERVAL_MS_KSTREAMS_OUTER_JOIN_SPURIOUS_RESULTS_FIX,
            Long.parseLong(words[5]));
        final long before = Long.parseLong(words[2]);
        final long after = Long.parseLong(words[3]);
        final Duration widest = Duration.ofMillis(Math.max(Math.abs(before), Math.abs(after)));
        final JoinWindows windows = JoinWindows
            .ofTimeDifferenceAndGrace(widest, Duration.ofMillis(Long.parseLong(words[4])))
            .before(Duration.ofMillis(before))
            .after(Duration.ofMillis(after));
        final StreamsBuilder builder = new StreamsBuilder();
        final Consumed<byte[], byte[]> consumed = Consumed.with(Serdes.ByteArray(), Serdes.ByteArray());
        final StreamJoined<byte[], byte[], byte[]> joined =
            StreamJoined.with(Serdes.ByteArray(), Serdes.ByteArray(), Serdes.ByteArray()).withName("j").withStoreName("j");
        final ValueJoiner<byte[], byte[], String> joiner = (left, right) -> shown(left) + "\t" + shown(right);
        final KStream<byte[], byte[]> left = builder.stream("L", consumed);
        final KStream<byte[], byte[]> right = type.equals("self") ? left : builder.stream("R", consumed);
        final KStream<byte[], String> results;
        switch (type) {
            case "left":
                results = left.leftJoin(right, joiner, windows, joined);
                break;
            case "outer":
                results = left.outerJoin(right, joiner, windows, joined);
                break;
            default:
                results = left.join(right, joiner, windows, joined);
        }
        results.to("out", Produced.with(Serdes.ByteArray(), Serdes.String()));
        return new TopologyTestDriver(builder.build(settings), settings, Instant.ofEpochMilli(0));
    }

    public static void main(final String[] arguments) throws Exception {
        final Path root = Path.of(arguments[0]);
        final Serializer<byte[]> serializer = Serdes.ByteArray().serializer();
        final Deserializer<byte[]> deserializer = Serdes.ByteArray().deserializer();
        final BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        TopologyTestDriver driver = null;
        TestOutputTopic<byte[], String> results = null;
        int joins = 0;
        Path state = root;
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            final String[] words = line.split("\t", -1);
            switch (words[0]) {
                case "join":
                    if (driver != null) {
                        driver.close();
                    }
                    state = root.resolve(String.valueOf(joins++));
                    driver = driver(state, words);
                    results = driver.createOutputTopic("out", deserializer, Serdes.String().deserializer());
                    break;
                case "advance":
                    driver.advanceWallClockTime(Duration.ofMillis(Long.parseLong(words[1])));
                    break;
                case "copy":
                    for (final StateStore store : driver.getAllStateStores().values()) {
                        store.close();
                    }
                    copy(state.resolve("peer").resolve("0_0"), Path.of(words[1]));
                    // Closing it would close the stores again, and remove them.
                    driver = null;
                    break;
                default:
                    final TestInputTopic<byte[], byte[]> input = driver.createInputTopic(words[0], serializer, serializer);
                    input.pipeInput(new TestRecord<>(
                        bytes(words[1]), bytes(words[2]), headers(words[4]), Long.parseLong(words[3])));
                    for (final TestRecord<byte[], String> each : results.readRecordsToList()) {
                        System.out.println(shown(each.key()) + "\t" + each.value() + "\t" + each.timestamp() + "\t"
                            + shown(each.headers()));
                    }
                    System.out.println(".");
            }
        }
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }
}
