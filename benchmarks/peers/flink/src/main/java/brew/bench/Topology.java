package brew.bench;

import java.util.Map;
import java.util.Properties;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.typeinfo.TypeHint;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.connector.kafka.source.reader.deserializer.KafkaRecordDeserializationSchema;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.util.Collector;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.OffsetResetStrategy;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.clients.producer.ProducerRecord;

/** Source, enrichment and two-phase-commit sink; all in one chain, so no record is ever serialised between them. */
final class Topology {
    private Topology() {}

    static void build(StreamExecutionEnvironment flink, Map<String, String> options) {
        flink.fromSource(source(options), WatermarkStrategy.noWatermarks(), "orders")
                .uid("orders")
                .map(new Enrich(options.get("output"), options.get("dead-letter")))
                .returns(new TypeHint<ProducerRecord<byte[], byte[]>>() {})
                .uid("enrich")
                .sinkTo(sink(options))
                .uid("out");
    }

    @SuppressWarnings("deprecation") // the connector asks for Kafka's old OffsetResetStrategy
    private static KafkaSource<ConsumerRecord<byte[], byte[]>> source(Map<String, String> options) {
        return KafkaSource.<ConsumerRecord<byte[], byte[]>>builder()
                .setBootstrapServers(options.get("bootstrap"))
                .setTopics(options.get("input"))
                .setGroupId(options.get("group"))
                .setStartingOffsets(OffsetsInitializer.committedOffsets(OffsetResetStrategy.EARLIEST))
                .setDeserializer(new AsTheyCome())
                .setProperty(ConsumerConfig.ISOLATION_LEVEL_CONFIG, "read_committed")
                .setProperty(ConsumerConfig.MAX_POLL_RECORDS_CONFIG, "10000")
                .build();
    }

    private static KafkaSink<ProducerRecord<byte[], byte[]>> sink(Map<String, String> options) {
        Properties producer = new Properties();
        // The sizes of the other contenders' producers.
        producer.setProperty(ProducerConfig.LINGER_MS_CONFIG, "5");
        producer.setProperty(ProducerConfig.BATCH_SIZE_CONFIG, Integer.toString(512 * 1024));
        producer.setProperty(ProducerConfig.BUFFER_MEMORY_CONFIG, Integer.toString(64 * 1024 * 1024));
        producer.setProperty(ProducerConfig.COMPRESSION_TYPE_CONFIG, "none");
        // What a checkpoint holds must outlive a restart; a broker allows 15 minutes unless told otherwise.
        producer.setProperty(ProducerConfig.TRANSACTION_TIMEOUT_CONFIG, Integer.toString(10 * 60 * 1000));
        return KafkaSink.<ProducerRecord<byte[], byte[]>>builder()
                .setBootstrapServers(options.get("bootstrap"))
                .setKafkaProducerConfig(producer)
                .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
                .setTransactionalIdPrefix(options.get("group"))
                .setRecordSerializer((record, context, timestamp) -> record)
                .build();
    }

    /** Hands the consumer's records on, for the headers. */
    private static final class AsTheyCome implements KafkaRecordDeserializationSchema<ConsumerRecord<byte[], byte[]>> {
        private static final long serialVersionUID = 1L;

        @Override
        public void deserialize(
                ConsumerRecord<byte[], byte[]> record, Collector<ConsumerRecord<byte[], byte[]>> out) {
            out.collect(record);
        }

        @Override
        public TypeInformation<ConsumerRecord<byte[], byte[]>> getProducedType() {
            return TypeInformation.of(new TypeHint<ConsumerRecord<byte[], byte[]>>() {});
        }
    }
}
