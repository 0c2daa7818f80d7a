package brew.bench;

import java.util.Optional;
import java.util.Set;
import org.apache.kafka.common.serialization.Serializer;
import org.apache.kafka.streams.processor.StreamPartitioner;

/** A value on its way out, with the partition that it came from and goes to. */
record Placed(byte[] value, Set<Integer> partition) {
    static final Serializer<Placed> SERIALIZER = (topic, placed) -> placed.value();
    static final StreamPartitioner<byte[], Placed> PARTITIONER =
            (topic, key, placed, partitions) -> Optional.of(placed.partition());
}
