#!/usr/bin/env bash
# Makes core/tests/store/fixtures/rocketmq-5.3.3.tar.xz: a small store that a real RocketMQ broker wrote, as it was after a clean stop
# (clean/) and after a kill -9 later on (killed/), and what RocketMQ's own decoder reads there (clean.jsonl, killed.jsonl).
# Needs Java and Maven. Usage: make_fixture.sh [OUTPUT]
set -euo pipefail

here=$(cd -P -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
root=$(cd -P -- "$here/../.." && pwd)
output=$(realpath -m -- "${1:-$root/core/tests/store/fixtures/rocketmq-5.3.3.tar.xz}")
peer=$root/interop_tests/bench/peers/rocketmq.sh
work=$(mktemp -d)
trap 'bash "$peer" kill "$work/peer" >/dev/null 2>&1 || true; rm -rf -- "$work"' EXIT

read -r ns broker < <(python3 -c '
import socket
held = [socket.socket() for _ in range(2)]
for one in held: one.bind(("127.0.0.1", 0))
print(*[one.getsockname()[1] for one in held])')
nameserver=127.0.0.1:$ns
export RMQ_COMMITLOG_SIZE=65536 RMQ_XMX=512m
small="mappedFileSizeConsumeQueue=2000;maxHashSlotNum=100;maxIndexNum=400;mappedFileSizeTimerLog=52000;maxMessageSize=30000"
small+=";transactionTimeOut=2000;transactionCheckInterval=3000;transactionCheckMax=2"

take() { # take NAME: the store as it lies there now, without the files of the timer
  mkdir -p "$work/out/$1"
  tar -C "$work/peer/store" --exclude=./timerwheel --exclude=./timerlog -cf - . | tar -C "$work/out/$1" -xf -
  java -cp "$classpath" "$here/Dump.java" "$work/out/$1/commitlog" >"$work/out/$1.jsonl"
}

classpath=$(bash "$peer" classpath)
RMQ_BROKER_EXTRA=$small bash "$peer" start "$work/peer" "$ns" "$broker"
for topic in Plain:2 Big:1 Delayed:1 Light:1 Gone:1 Decided:1; do
  bash "$peer" mqadmin updateTopic -n "$nameserver" -b "127.0.0.1:$broker" -t "${topic%:*}" -r "${topic#*:}" -w "${topic#*:}" >/dev/null
done
java -cp "$classpath" "$here/Produce.java" "$nameserver" all
bash "$peer" mqadmin deleteTopic -n "$nameserver" -c DefaultCluster -t Gone >/dev/null
sleep 8 # offsets are written every 5 s
bash "$peer" stop "$work/peer"
take clean

# Now with IPv6 hosts and a CRC over the properties. The script's probe looks for 127.0.0.1 and gives up; the broker runs.
RMQ_READY_S=15 RMQ_BROKER_EXTRA="$small;enabledAppendPropCRC=true;brokerIP1=::1;brokerIP2=::1;bindAddress=::" \
  bash "$peer" start "$work/peer" "$ns" "$broker" >/dev/null 2>&1 || true
java -cp "$classpath" "$here/Produce.java" "$nameserver" more
bash "$peer" kill "$work/peer"
take killed

mkdir -p -- "$(dirname -- "$output")"
tar -C "$work/out" --sort=name --owner=0 --group=0 --numeric-owner -cf - . | xz -9e >"$output"
ls -l -- "$output"
