import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.Headers;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.StreamJoined;

/**
 * Topics of a broker, and an outer join by Kafka Streams over two of them; tabs between words, bytes as hex or null.
 *
 * <pre>
 * java KafkaPeer.java BOOTSTRAP STATE_DIRECTORY
 *   topic  name  partitions
 *   send  topic  partition  timestamp  key  value  headers          headers name=hex,name=null
 *   join  left  right  out  before  after  grace                    until all of both topics is worked off
 *   read  topic                                                     prints all records, then .
 * </pre>
 * A record is printed as: partition  timestamp  key  value  headers. A result's value is the text left|right in hex.
 */
public class KafkaPeer {
    static final HexFormat HEX = HexFormat.of();
    static final Duration PATIENCE = Duration.ofSeconds(90);

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
        final List<String> parts = new ArrayList<>();
        for (final Header each : headers) {
            parts.add(each.key() + "=" + shown(each.value()));
        }
        return String.join(",", parts);
    }

    static List<TopicPartition> partitions(final KafkaConsumer<byte[], byte[]> consumer, final String topic) {
        final List<TopicPartition> found = new ArrayList<>();
        for (final PartitionInfo each : consumer.partitionsFor(topic)) {
            found.add(new TopicPartition(topic, each.partition()));
        }
        return found;
    }

    static void acknowledged(final List<Future<RecordMetadata>> sent) throws Exception {
        for (final Future<RecordMetadata> each : sent) {
            each.get();
        }
        sent.clear();
    }

    static void read(final Map<String, Object> client, final String topic) {
        try (KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(client, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            final List<TopicPartition> all = partitions(consumer, topic);
            final Map<TopicPartition, Long> ends = consumer.endOffsets(all);
            consumer.assign(all);
            consumer.seekToBeginning(all);
            while (all.stream().anyMatch(each -> consumer.position(each) < ends.get(each))) {
                for (final ConsumerRecord<byte[], byte[]> each : consumer.poll(Duration.ofMillis(200))) {
                    System.out.println(String.join("\t", String.valueOf(each.partition()), String.valueOf(each.timestamp()),
                        shown(each.key()), shown(each.value()), shown(each.headers())));
                }
            }
        }
        System.out.println(".");
    }

    static void join(final Map<String, Object> client, final String state, final String[] words) throws Exception {
        final Properties settings = new Properties();
        settings.putAll(client);
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, "peer");
        settings.put(StreamsConfig.STATE_DIR_CONFIG, state);
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 100);
        settings.put("auto.offset.reset", "earliest");
        settings.put(StreamsConfig.InternalConfig.EMIT_INTERVAL_MS_KSTREAMS_OUTER_JOIN_SPURIOUS_RESULTS_FIX, 0L);
        final long before = Long.parseLong(words[4]);
        final long after = Long.parseLong(words[5]);
        final JoinWindows windows = JoinWindows
            .ofTimeDifferenceAndGrace(Duration.ofMillis(Math.max(before, after)), Duration.ofMillis(Long.parseLong(words[6])))
            .before(Duration.ofMillis(before))
            .after(Duration.ofMillis(after));
        final StreamsBuilder builder = new StreamsBuilder();
        final Consumed<byte[], byte[]> consumed = Consumed.with(Serdes.ByteArray(), Serdes.ByteArray());
        final KStream<byte[], byte[]> left = builder.stream(words[1], consumed);
        final KStream<byte[], byte[]> right = builder.stream(words[2], consumed);
        left.outerJoin(right, (one, two) -> shown(one) + "|" + shown(two), windows,
                StreamJoined.with(Serdes.ByteArray(), Serdes.ByteArray(), Serdes.ByteArray()))
            .to(words[3], Produced.with(Serdes.ByteArray(), Serdes.String()));
        try (KafkaStreams streams = new KafkaStreams(builder.build(), settings);
                Admin admin = Admin.create(client);
                KafkaConsumer<byte[], byte[]> consumer =
                    new KafkaConsumer<>(client, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            final List<TopicPartition> all = partitions(consumer, words[1]);
            all.addAll(partitions(consumer, words[2]));
            final Map<TopicPartition, Long> ends = consumer.endOffsets(all);
            streams.start();
            final long end = System.nanoTime() + PATIENCE.toNanos();
            boolean done = false;
            while (!done) {
                if (System.nanoTime() > end || streams.state() == KafkaStreams.State.ERROR) {
                    throw new IllegalStateException("Kafka Streams did not get to the end: " + streams.state());
                }
                Thread.sleep(100);
                final Map<TopicPartition, OffsetAndMetadata> committed =
                    admin.listConsumerGroupOffsets("peer").partitionsToOffsetAndMetadata().get();
                done = all.stream().allMatch(
                    each -> ends.get(each) == 0 || committed.get(each) != null && committed.get(each).offset() >= ends.get(each));
            }
        }
    }

    public static void main(final String[] args) throws Exception {
        final Map<String, Object> client = Map.of("bootstrap.servers", args[0]);
        try (Admin admin = Admin.create(client);
                KafkaProducer<byte[], byte[]> producer =
                    new KafkaProducer<>(client, new ByteArraySerializer(), new ByteArraySerializer())) {
            final List<Future<RecordMetadata>> sent = new ArrayList<>();
            final BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
            for (String line = input.readLine(); line != null; line = input.readLine()) {
                final String[] words = line.split("\t", -1);
                switch (words[0]) {
                    case "topic":
                        admin.createTopics(List.of(new NewTopic(words[1], Integer.parseInt(words[2]), (short) 1))).all().get();
                        break;
                    case "send":
                        sent.add(producer.send(new ProducerRecord<>(words[1], Integer.parseInt(words[2]), Long.parseLong(words[3]),
                            bytes(words[4]), bytes(words[5]), headers(words[6]))));
                        break;
                    case "join":
                        acknowledged(sent);
                        join(client, args[1], words);
                        break;
                    default:
                        acknowledged(sent);
                        read(client, words[1]);
                }
            }
            acknowledged(sent);
        }
    }
}
