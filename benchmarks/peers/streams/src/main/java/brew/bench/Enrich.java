package brew.bench;

import static java.nio.charset.StandardCharsets.ISO_8859_1;
import static java.nio.charset.StandardCharsets.UTF_8;

import java.util.Set;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.processor.api.RecordMetadata;

/** An order in, an enriched one or a rejected one out; both with three source headers behind their own. */
final class Enrich implements Processor<byte[], byte[], byte[], Placed> {
    static final String ENRICHED = "enriched";
    static final String REJECTED = "rejected";

    private ProcessorContext<byte[], Placed> context;
    private byte[] topic;
    private byte[] partition;
    private Set<Integer> target;

    @Override
    public void init(ProcessorContext<byte[], Placed> given) {
        context = given;
        topic = null;
    }

    @Override
    public void process(Record<byte[], byte[]> order) {
        RecordMetadata source = context.recordMetadata().orElseThrow();
        if (topic == null) { // a task reads one partition
            topic = source.topic().getBytes(UTF_8);
            partition = Integer.toString(source.partition()).getBytes(ISO_8859_1);
            target = Set.of(source.partition());
        }
        Outcome outcome = Outcome.of(order.key(), order.value());
        outcome.mark(order.headers(), topic, partition, source.offset());
        context.forward(order.withValue(new Placed(outcome.value(), target)), outcome.rejected() ? REJECTED : ENRICHED);
    }
}
