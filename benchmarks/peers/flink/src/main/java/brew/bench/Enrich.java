package brew.bench;

import static java.nio.charset.StandardCharsets.ISO_8859_1;
import static java.nio.charset.StandardCharsets.UTF_8;

import java.util.HashMap;
import java.util.Map;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.functions.RichMapFunction;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.producer.ProducerRecord;

/** An order in, an enriched one or a rejected one out; same key, partition and timestamp, three headers more. */
final class Enrich extends RichMapFunction<ConsumerRecord<byte[], byte[]>, ProducerRecord<byte[], byte[]>> {
    private static final long serialVersionUID = 1L;

    private final String output;
    private final String deadLetter;
    private transient Map<Integer, byte[]> partitions;
    private transient byte[] topic;

    Enrich(String output, String deadLetter) {
        this.output = output;
        this.deadLetter = deadLetter;
    }

    @Override
    public void open(OpenContext context) {
        partitions = new HashMap<>();
    }

    @Override
    public ProducerRecord<byte[], byte[]> map(ConsumerRecord<byte[], byte[]> order) {
        if (topic == null) {
            topic = order.topic().getBytes(UTF_8);
        }
        byte[] partition = partitions.computeIfAbsent(order.partition(), it -> Integer.toString(it).getBytes(ISO_8859_1));
        Outcome outcome = Outcome.of(order.key(), order.value());
        outcome.mark(order.headers(), topic, partition, order.offset());
        return new ProducerRecord<>(
                outcome.rejected() ? deadLetter : output,
                order.partition(),
                order.timestamp(),
                order.key(),
                outcome.value(),
                order.headers());
    }
}
