import java.lang.management.ManagementFactory;
import java.time.Duration;
import java.util.Properties;
import java.util.Random;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.TopologyTestDriver;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.kstream.ValueJoiner;
import org.apache.kafka.streams.test.TestRecord;

/**
 * One Kafka Streams task joining two topics. Arguments: type, keys, window ms, records, state directory. Prints
 * records a second after a warm-up, results, and CPU seconds a record.
 */
public class StreamsJoin {
    private static final long START = 1_700_000_000_000L;
    private static final Random CHANCE = new Random(1);

    public static void main(String[] args) {
        String type = args[0];
        int keys = Integer.parseInt(args[1]);
        long window = Long.parseLong(args[2]);
        int records = Integer.parseInt(args[3]);
        StreamsBuilder builder = new StreamsBuilder();
        Consumed<byte[], byte[]> consumed = Consumed.with(Serdes.ByteArray(), Serdes.ByteArray());
        KStream<byte[], byte[]> left = builder.stream("left", consumed);
        KStream<byte[], byte[]> right = builder.stream("right", consumed);
        ValueJoiner<byte[], byte[], byte[]> joiner = StreamsJoin::together;
        JoinWindows windows = JoinWindows.ofTimeDifferenceWithNoGrace(Duration.ofMillis(window));
        StreamJoined<byte[], byte[], byte[]> with =
            StreamJoined.with(Serdes.ByteArray(), Serdes.ByteArray(), Serdes.ByteArray());
        KStream<byte[], byte[]> joined = type.equals("inner") ? left.join(right, joiner, windows, with)
            : type.equals("left") ? left.leftJoin(right, joiner, windows, with)
            : left.outerJoin(right, joiner, windows, with);
        joined.to("out", Produced.with(Serdes.ByteArray(), Serdes.ByteArray()));
        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, "bench");
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, "none:1");
        settings.put(StreamsConfig.STATE_DIR_CONFIG, args[4]);
        settings.put("dsl.store.format", "HEADERS");
        try (TopologyTestDriver driver = new TopologyTestDriver(builder.build(), settings)) {
            var lefts = driver.createInputTopic("left", new ByteArraySerializer(), new ByteArraySerializer());
            var rights = driver.createInputTopic("right", new ByteArraySerializer(), new ByteArraySerializer());
            var out = driver.createOutputTopic("out", new ByteArrayDeserializer(), new ByteArrayDeserializer());
            // What is retained is there before the measuring begins, as it is for the others.
            int warmUp = (int) Math.max(150_000, 5 * window);
            long results = 0;
            long begun = 0;
            long spent = 0;
            long clock = System.nanoTime();
            for (int number = 0; number < warmUp + records; number++) {
                if (number == warmUp) {
                    begun = System.nanoTime();
                    spent = cpu();
                    results = 0;
                }
                int pair = number / 2;
                boolean isLeft = number % 2 == 0;
                long id = (long) pair * (isLeft ? 7919 : 7907) % keys;
                byte[] value = new byte[100];
                byte[] trace = new byte[8];
                CHANCE.nextBytes(value);
                CHANCE.nextBytes(trace);
                RecordHeaders headers = new RecordHeaders();
                headers.add("trace-id", trace);
                headers.add("source", "app".getBytes());
                TestRecord<byte[], byte[]> record =
                    new TestRecord<>(String.format("key-%08d", id).getBytes(), value, headers, START + pair);
                (isLeft ? lefts : rights).pipeInput(record);
                if (number % 1000 == 999) {
                    results += out.readRecordsToList().size();
                    // Unmatched results leave once a second by the wall clock, which the driver does not move itself.
                    long now = System.nanoTime();
                    driver.advanceWallClockTime(Duration.ofNanos(now - clock));
                    clock = now;
                }
            }
            double seconds = (System.nanoTime() - begun) / 1e9;
            System.out.println(records / seconds + " " + results + " " + (cpu() - spent) / 1e9 / records);
        }
    }

    private static long cpu() {
        return ((com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
    }

    private static byte[] together(byte[] left, byte[] right) {
        byte[] both = new byte[(left == null ? 0 : left.length) + (right == null ? 0 : right.length)];
        if (left != null) {
            System.arraycopy(left, 0, both, 0, left.length);
        }
        if (right != null) {
            System.arraycopy(right, 0, both, both.length - right.length, right.length);
        }
        return both;
    }
}
