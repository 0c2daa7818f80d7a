package brew.bench;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Comparator;
import java.util.HashMap;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.stream.Stream;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.core.execution.JobClient;
import org.apache.flink.core.execution.SavepointFormatType;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/**
 * The Flink peer: a job on a MiniCluster in this process, exactly once by a checkpoint a second, until SIGTERM.
 *
 * <p>It begins where the newest checkpoint or savepoint in its state directory stands; without one, at the group's
 * offsets; without those, at the input's start. SIGTERM stops it with a savepoint, as an operator would.
 */
public final class Main {
    private static final long GOODBYE_S = 20;

    private Main() {}

    public static void main(String[] arguments) throws Exception {
        System.setProperty("org.slf4j.simpleLogger.defaultLogLevel", "warn");
        Map<String, String> options = Options.of("flink", arguments);
        Path state = Path.of(options.get("state-dir")).toAbsolutePath();
        StreamExecutionEnvironment flink = StreamExecutionEnvironment.createLocalEnvironment(settings(options, state));
        Topology.build(flink, options);
        JobClient job = flink.executeAsync(options.get("group"));
        AtomicBoolean stopping = new AtomicBoolean();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            if (stopping.getAndSet(true)) {
                return; // the job ended by itself, and main says so
            }
            // A JVM that a signal ends tells 143; ended in good order is 0 for the benchmark.
            Runtime.getRuntime().halt(stop(job, state) ? 0 : 1);
        }));
        try {
            job.getJobExecutionResult().get();
        } catch (ExecutionException error) {
            error.printStackTrace();
        }
        if (stopping.getAndSet(true)) {
            Thread.currentThread().join(); // the hook is at work, and halts
        }
        System.exit(1); // it has no end of its own
    }

    private static boolean stop(JobClient job, Path state) {
        try {
            job.stopWithSavepoint(false, state.resolve("savepoints").toUri().toString(), SavepointFormatType.NATIVE)
                    .get(GOODBYE_S, TimeUnit.SECONDS);
            job.getJobExecutionResult().get(GOODBYE_S, TimeUnit.SECONDS);
            return true;
        } catch (InterruptedException | ExecutionException | TimeoutException error) {
            error.printStackTrace();
            return false;
        }
    }

    private static Configuration settings(Map<String, String> options, Path state) throws IOException {
        String slots = options.getOrDefault("slots", "2");
        Map<String, String> settings = new HashMap<>(Map.of(
                "parallelism.default", slots,
                "taskmanager.numberOfTaskSlots", slots,
                "pipeline.object-reuse", "true",
                "restart-strategy.type", "none", // a failure is told, not hidden
                "io.tmp.dirs", state.resolve("tmp").toString(), // a killed run leaves nothing elsewhere
                "execution.checkpointing.interval", options.getOrDefault("checkpoint-ms", "1000") + " ms",
                "execution.checkpointing.mode", "EXACTLY_ONCE",
                "execution.checkpointing.storage", "filesystem",
                "execution.checkpointing.dir", state.resolve("checkpoints").toUri().toString(),
                "execution.checkpointing.externalized-checkpoint-retention", "RETAIN_ON_CANCELLATION"));
        newest(state).ifPresent(path -> settings.put("execution.state-recovery.path", path.toUri().toString()));
        return Configuration.fromMap(settings);
    }

    /** The directory of the newest complete checkpoint or savepoint: Flink writes its metadata last. */
    private static Optional<Path> newest(Path state) throws IOException {
        if (!Files.isDirectory(state)) {
            return Optional.empty();
        }
        try (Stream<Path> files = Files.walk(state)) {
            return files.filter(file -> file.endsWith("_metadata"))
                    .max(Comparator.comparing(Main::modified))
                    .map(Path::getParent);
        }
    }

    private static long modified(Path file) {
        try {
            return Files.getLastModifiedTime(file).to(TimeUnit.NANOSECONDS);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }
}
