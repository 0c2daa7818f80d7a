package brew.bench;

import java.time.Duration;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;

/** The Kafka Streams peer: exactly_once_v2, until SIGTERM. */
public final class Main {
    private static final Duration GOODBYE = Duration.ofSeconds(8);

    private Main() {}

    public static void main(String[] arguments) throws InterruptedException {
        System.setProperty("org.slf4j.simpleLogger.defaultLogLevel", "warn");
        Map<String, String> options = Options.of("streams", arguments);
        KafkaStreams streams = new KafkaStreams(topology(options), settings(options));
        CountDownLatch failed = new CountDownLatch(1);
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            failed.countDown();
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            boolean closed = streams.close(GOODBYE);
            // A JVM that a signal ends tells 143; ended in good order is 0 for the benchmark.
            Runtime.getRuntime().halt(closed && failed.getCount() > 0 ? 0 : 1);
        }));
        streams.start();
        failed.await();
        System.exit(1);
    }

    private static Topology topology(Map<String, String> options) {
        Topology topology = new Topology();
        topology.addSource("orders", new ByteArrayDeserializer(), new ByteArrayDeserializer(), options.get("input"));
        topology.addProcessor("enrich", Enrich::new, "orders");
        topology.addSink(
                Enrich.ENRICHED, options.get("output"), new ByteArraySerializer(), Placed.SERIALIZER, Placed.PARTITIONER, "enrich");
        topology.addSink(
                Enrich.REJECTED, options.get("dead-letter"), new ByteArraySerializer(), Placed.SERIALIZER, Placed.PARTITIONER, "enrich");
        return topology;
    }

    private static Properties settings(Map<String, String> options) {
        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, options.get("group"));
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, options.get("bootstrap"));
        settings.put(StreamsConfig.STATE_DIR_CONFIG, options.get("state-dir"));
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, options.getOrDefault("commit-ms", "100"));
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, options.getOrDefault("threads", "2"));
        settings.put(StreamsConfig.BUFFERED_RECORDS_PER_PARTITION_CONFIG, 10_000);
        settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG), "earliest");
        settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.MAX_POLL_RECORDS_CONFIG), 10_000);
        if (!options.getOrDefault("instance", "").isEmpty()) {
            settings.put(StreamsConfig.mainConsumerPrefix(ConsumerConfig.GROUP_INSTANCE_ID_CONFIG), options.get("instance"));
        }
        // The sizes of the other contenders' producers.
        settings.put(StreamsConfig.producerPrefix(ProducerConfig.LINGER_MS_CONFIG), 5);
        settings.put(StreamsConfig.producerPrefix(ProducerConfig.BATCH_SIZE_CONFIG), 512 * 1024);
        settings.put(StreamsConfig.producerPrefix(ProducerConfig.BUFFER_MEMORY_CONFIG), 64L * 1024 * 1024);
        settings.put(StreamsConfig.producerPrefix(ProducerConfig.COMPRESSION_TYPE_CONFIG), "none");
        return settings;
    }
}
