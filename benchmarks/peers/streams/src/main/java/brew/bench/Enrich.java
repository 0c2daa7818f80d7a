package brew.bench;

import static java.nio.charset.StandardCharsets.ISO_8859_1;
import static java.nio.charset.StandardCharsets.UTF_8;

import com.fasterxml.jackson.core.JacksonException;
import com.fasterxml.jackson.databind.DeserializationFeature;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.cfg.JsonNodeFeature;
import com.fasterxml.jackson.databind.json.JsonMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.common.header.Headers;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.processor.api.RecordMetadata;

/** An order in, an enriched one or a rejected one out; both with three source headers behind their own. */
final class Enrich implements Processor<byte[], byte[], byte[], Placed> {
    static final String ENRICHED = "enriched";
    static final String REJECTED = "rejected";

    private static final String STANDARD = "standard";
    private static final Map<String, Double> DISCOUNTS = Map.of("gold", 0.15, "silver", 0.10, "bronze", 0.05, STANDARD, 0.0);
    private static final ObjectMapper JSON = JsonMapper.builder()
            .enable(DeserializationFeature.USE_BIG_DECIMAL_FOR_FLOATS)
            .enable(DeserializationFeature.FAIL_ON_TRAILING_TOKENS)
            .disable(JsonNodeFeature.STRIP_TRAILING_BIGDECIMAL_ZEROES)
            .build();

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
        if (order.value() == null) {
            reject(order, source, "no-value");
            return;
        }
        JsonNode parsed;
        try {
            parsed = JSON.readTree(order.value());
        } catch (JacksonException error) {
            reject(order, source, "not-json");
            return;
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
        if (!(parsed instanceof ObjectNode enriched)) {
            reject(order, source, parsed.isMissingNode() ? "not-json" : "not-an-object");
            return;
        }
        JsonNode customer = enriched.get("customer_id");
        if (customer == null || customer.isNull() || (customer.isTextual() && customer.textValue().isEmpty())) {
            reject(order, source, "no-customer-id");
            return;
        }
        String tier = tier(order.key());
        enriched.put("loyalty_tier", tier);
        enriched.put("loyalty_discount", DISCOUNTS.get(tier));
        try {
            send(order, source, JSON.writeValueAsBytes(enriched), ENRICHED);
        } catch (JacksonException error) {
            throw new IllegalStateException(error);
        }
    }

    private void reject(Record<byte[], byte[]> order, RecordMetadata source, String reason) {
        order.headers().add("__streams.errors.reason", reason.getBytes(ISO_8859_1));
        send(order, source, order.value(), REJECTED);
    }

    private void send(Record<byte[], byte[]> order, RecordMetadata source, byte[] value, String sink) {
        Headers headers = order.headers();
        headers.add("source.topic", topic);
        headers.add("source.partition", partition);
        headers.add("source.offset", Long.toString(source.offset()).getBytes(ISO_8859_1));
        context.forward(order.withValue(new Placed(value, target)), sink);
    }

    private static String tier(byte[] key) {
        if (key == null) {
            return STANDARD;
        }
        int end = 0;
        while (end < key.length && key[end] != '-') {
            end++;
        }
        String prefix = new String(key, 0, end, ISO_8859_1);
        return DISCOUNTS.containsKey(prefix) ? prefix : STANDARD;
    }
}
