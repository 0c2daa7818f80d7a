package brew.bench;

import static java.nio.charset.StandardCharsets.ISO_8859_1;

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
import org.apache.kafka.common.header.Headers;

/** What an order becomes: its JSON with two more fields, or itself with the reason for which it is rejected. */
record Outcome(byte[] value, String reason) {
    private static final String STANDARD = "standard";
    private static final Map<String, Double> DISCOUNTS = Map.of("gold", 0.15, "silver", 0.10, "bronze", 0.05, STANDARD, 0.0);
    private static final ObjectMapper JSON = JsonMapper.builder()
            .enable(DeserializationFeature.USE_BIG_DECIMAL_FOR_FLOATS)
            .enable(DeserializationFeature.FAIL_ON_TRAILING_TOKENS)
            .disable(JsonNodeFeature.STRIP_TRAILING_BIGDECIMAL_ZEROES)
            .build();

    static Outcome of(byte[] key, byte[] value) {
        if (value == null) {
            return new Outcome(null, "no-value");
        }
        try {
            JsonNode parsed = JSON.readTree(value);
            if (!(parsed instanceof ObjectNode enriched)) {
                return new Outcome(value, parsed.isMissingNode() ? "not-json" : "not-an-object");
            }
            JsonNode customer = enriched.get("customer_id");
            if (customer == null || customer.isNull() || (customer.isTextual() && customer.textValue().isEmpty())) {
                return new Outcome(value, "no-customer-id");
            }
            String tier = tier(key);
            enriched.put("loyalty_tier", tier);
            enriched.put("loyalty_discount", DISCOUNTS.get(tier));
            return new Outcome(JSON.writeValueAsBytes(enriched), null);
        } catch (JacksonException error) {
            return new Outcome(value, "not-json");
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    boolean rejected() {
        return reason != null;
    }

    /** Adds the reason, if there is one, and the three source headers behind the order's own. */
    void mark(Headers headers, byte[] topic, byte[] partition, long offset) {
        if (rejected()) {
            headers.add("__streams.errors.reason", reason.getBytes(ISO_8859_1));
        }
        headers.add("source.topic", topic);
        headers.add("source.partition", partition);
        headers.add("source.offset", Long.toString(offset).getBytes(ISO_8859_1));
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
