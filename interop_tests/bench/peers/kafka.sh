#!/usr/bin/env bash
# Real Apache Kafka (KRaft, one node) and Spark's Kafka connector, from Maven Central, for comparison runs on 127.0.0.1. Needs Java 17 or newer and mvn.
# Usage: kafka.sh install | start DIR PORT (the controller takes PORT+1; prints the broker's pid) | stop DIR | topic PORT NAME PARTITIONS
#        kafka.sh jars SPARK_VERSION  (prints a folder with the connector and what pyspark does not ship)
# Env: KAFKA_VERSION, SPARK_TOKEN_VERSION, GANTRY_CACHE (default /var/tmp/gantry-peers)
set -euo pipefail

KAFKA_VERSION=${KAFKA_VERSION:-4.3.1}
CACHE=${GANTRY_CACHE:-/var/tmp/gantry-peers}
LIBS=$CACHE/kafka-$KAFKA_VERSION

die() { echo "kafka.sh: $*" >&2; exit 1; }

# collect FOLDER TRANSITIVE GROUP:ARTIFACT:VERSION...
collect() {
    local folder=$1 transitive=$2 pom artifact rest='' group name version
    shift 2
    [ -e "$folder/.complete" ] && return 0
    command -v java >/dev/null && command -v mvn >/dev/null || die "needs java and mvn"
    mkdir -p "$CACHE"
    exec 9>"$folder.lock"
    flock 9
    if [ ! -e "$folder/.complete" ]; then
        pom=$(mktemp -d)
        [ "$transitive" = yes ] || rest='<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>'
        {
            echo '<project><modelVersion>4.0.0</modelVersion>'
            echo '<groupId>gantry.peers</groupId><artifactId>kafka-peer</artifactId><version>1</version><packaging>pom</packaging><dependencies>'
            for artifact in "$@"; do
                IFS=: read -r group name version <<<"$artifact"
                echo "<dependency><groupId>$group</groupId><artifactId>$name</artifactId><version>$version</version>$rest</dependency>"
            done
            echo '</dependencies></project>'
        } >"$pom/pom.xml"
        mvn -B -q -ntp -f "$pom/pom.xml" org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies \
            -DincludeScope=runtime -DoutputDirectory="$folder" >&2 || { rm -r "$pom"; die "not on Maven Central, or it cannot be reached: $*"; }
        rm -r "$pom"
        touch "$folder/.complete"
    fi
    exec 9>&-
}

install() {
    collect "$LIBS" yes "org.apache.kafka:kafka_2.13:$KAFKA_VERSION" "org.apache.kafka:kafka-tools:$KAFKA_VERSION" org.slf4j:slf4j-simple:1.7.36
}

# The connector's own dependencies are named: those of its parent stand in repositories that are not reachable everywhere.
jars() {
    local spark=$1 clients pool
    case $spark in
        4.0.*) clients=3.9.0 pool=2.12.0 ;;
        4.1.*) clients=3.9.1 pool=2.12.1 ;;
        *) clients=3.9.2 pool=2.13.1 ;;
    esac
    collect "$CACHE/spark-kafka-$spark" no "org.apache.spark:spark-sql-kafka-0-10_2.13:$spark" \
        "org.apache.spark:spark-token-provider-kafka-0-10_2.13:${SPARK_TOKEN_VERSION:-4.0.0}" \
        "org.apache.kafka:kafka-clients:$clients" "org.apache.commons:commons-pool2:$pool"
    echo "$CACHE/spark-kafka-$spark"
}

# JVM flags of the distribution's kafka-server-start.sh.
JVM_SERVER=(-Xmx1g -Xms1g -server -XX:+UseG1GC -XX:MaxGCPauseMillis=20 -XX:InitiatingHeapOccupancyPercent=35
    -XX:+ExplicitGCInvokesConcurrent -Djava.awt.headless=true -Dorg.slf4j.simpleLogger.showDateTime=true)
tool() { java -Xmx512m -Dorg.slf4j.simpleLogger.defaultLogLevel=warn -cp "$LIBS/*" "$@"; }

start() {
    install
    mkdir -p "$1"
    local dir port=$2 pid
    dir=$(cd "$1" && pwd)
    # Values of the distribution's config/server.properties; only addresses and folders are ours.
    cat >"$dir/server.properties" <<CONF
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$((port + 1))
listeners=PLAINTEXT://127.0.0.1:$port,CONTROLLER://127.0.0.1:$((port + 1))
advertised.listeners=PLAINTEXT://127.0.0.1:$port
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=$dir/data
num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.segment.bytes=1073741824
CONF
    [ -e "$dir/data/meta.properties" ] || tool kafka.tools.StorageTool format -t "$(tool kafka.tools.StorageTool random-uuid)" \
        -c "$dir/server.properties" >"$dir/format.log" 2>&1 || { tail -n 20 "$dir/format.log" >&2; die "formatting failed"; }
    (   # the JVM must not inherit a caller's lock
        for fd in /proc/self/fd/*; do
            fd=${fd##*/}
            [ "$fd" -le 2 ] || eval "exec $fd>&-" 2>/dev/null || true
        done
        exec nohup java "${JVM_SERVER[@]}" -cp "$LIBS/*" kafka.Kafka "$dir/server.properties" >"$dir/broker.log" 2>&1 </dev/null
    ) &
    pid=$!
    echo "$pid" >"$dir/pid"
    for _ in $(seq 1800); do
        grep -q 'Kafka Server started' "$dir/broker.log" 2>/dev/null && { echo "$pid"; return; }
        kill -0 "$pid" 2>/dev/null || { tail -n 20 "$dir/broker.log" >&2; die "the broker ended"; }
        sleep 0.1
    done
    die "no broker within 180 s, see $dir/broker.log"
}

stop() {
    local pid
    pid=$(cat "$1/pid" 2>/dev/null) || die "no pid file in $1"
    kill "$pid" 2>/dev/null || true
    for _ in $(seq 200); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
    kill -9 "$pid" 2>/dev/null || true
    rm -f "$1/pid"
}

case ${1:-} in
    install) install ;;
    start) start "${2:?DIR}" "${3:?PORT}" ;;
    stop) stop "${2:?DIR}" ;;
    topic) install; tool org.apache.kafka.tools.TopicCommand --bootstrap-server "127.0.0.1:${2:?PORT}" --create --if-not-exists --topic "${3:?NAME}" --partitions "${4:?PARTITIONS}" ;;
    jars) jars "${2:?SPARK_VERSION}" ;;
    *) sed -n '2,5s/^# \?//p' "$0"; exit 2 ;;
esac
