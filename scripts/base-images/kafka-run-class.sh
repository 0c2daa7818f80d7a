#!/bin/bash
# Runs a class of Kafka's.
# shellcheck disable=SC2086 # the options are several words
exec java ${KAFKA_HEAP_OPTS:--Xmx512m} ${KAFKA_JVM_PERFORMANCE_OPTS:--XX:TieredStopAtLevel=1 -XX:+UseSerialGC} \
    -Dorg.slf4j.simpleLogger.logFile=System.${KAFKA_STAND_IN_LOG:-out} -cp '/opt/kafka/libs/*' "$@"
