#!/bin/bash
KAFKA_STAND_IN_LOG=err exec /opt/kafka/bin/kafka-run-class.sh org.apache.kafka.tools.BrokerApiVersionsCommand "$@"
