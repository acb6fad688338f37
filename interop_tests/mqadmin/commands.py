"""The commands that are compared, in the order in which they run: each finds what those before it made.

`{n}`, `{b}`: addresses of nameserver and broker; `{uniq}`, `{off}`: ids of the first message; `{dir}`: a directory for files.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

Rule = tuple[str, str, str]
"""(pattern, replacement, why the two may differ there); applied to what both printed, line by line."""


@dataclass(frozen=True)
class Step:
    """One command. `must`: text that both have to print, so that two failures are no success."""

    words: str
    must: str = ""
    rules: tuple[Rule, ...] = ()
    limit_ms: int = 120_000
    compared: bool = True
    until: str = ""
    """Repeat until what it prints matches: what the command shows follows a moment later."""

    @property
    def name(self) -> str:
        return self.words.split()[0]


EVERYWHERE: Final[tuple[Rule, ...]] = (
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(,\d+)?", "<time>", "when it ran"),
    (r"\b1[789]\d{11}\b", "<ms>", "when it ran"),
    (r"(producer|consumer)-127\.0\.0\.1-\d+", r"\1", "client ids of the test name the nameserver"),
    (r"\b[0-9A-F]{32}([0-9A-F]{24})?\b", "<id>", "message ids hold addresses, times and positions"),
    (r"127\.0\.0\.1:\d+", "<address>", "ports"),
    (r"/\S*(real|our)-files", "<dir>", "paths"),
    (r"(CODE: \d+ ).*", r"\1", "failures are told in other words, with the same code"),
    (
        r"\bstoreSize=\d+|physicSize=\d+",
        "size=<n>",
        "a message stored before the first trace has no MSG_REGION and TRACE_ON here: 39 bytes less",
    ),
    (
        r"(physicOffset|commitLogOffset|CommitLog Offset)[:=] *\d+",
        r"\1=<n>",
        "tables and topics are records of the log, too",
    ),
    (
        r"MSG_REGION=DefaultRegion, |, TRACE_ON=true|TRACE_ON=true, ",
        "",
        "the same for every message: not stored here before the first trace",
    ),
)

DROPPED: Final = re.compile(
    r"^(\s+at |\s+\.\.\. \d+ more|For more information|See https|Caused by: |\[stopped after|\s*$)"
)
"""Lines of stack traces, whose depth differs, and empty ones."""

RATES: Final = (r"\b\d+\.\d{2}\b", "<rate>", "rates depend on the moment of the sample")
OWN_GROUP: Final = (r"^T1 +T1 .*", "", "a group of the tool's own")
FIRST_HOUR: Final = (
    r"^(T1 +\S+ +\d+ +<rate> +<rate>) .*", r"\1", "RocketMQ's sums over a day miss what came before their first sample",
)  # fmt: skip
INFLIGHT: Final = (
    r"^(T1 .*\d) +\d+ +(<time>|N/A)",
    r"\1 \2",
    "messages pulled before the first commit are not known here",
)

STEPS: Final[tuple[Step, ...]] = (
    Step("updateTopic -n {n} -b {b} -t T1 -r 2 -w 2", "create topic to"),
    Step("updateTopic -n {n} -c DefaultCluster -t T2", "readQueueNums=8"),
    Step("topicRoute -n {n} -t T1", '"writeQueueNums":2', until='"queueDatas"'),
    Step("topicRoute -n {n} -t T1 -l", "DefaultCluster", until="#ClusterName"),
    Step("topicRoute -n {n} -t T2", '"writeQueueNums":8', until='"queueDatas"'),
    Step("updateTopicList -n {n} -b {b} -f {dir}/topics.json", "success"),
    Step("topicRoute -n {n} -t L2", '"perm":6', until='"queueDatas"'),
    Step("updateSubGroup -n {n} -b {b} -g G1", "groupName=G1"),
    Step("updateSubGroup -n {n} -b {b} -g G2 -s true -m true -q 2 -r 5", "retryMaxTimes=5"),
    Step("updateSubGroupList -n {n} -b {b} -f {dir}/groups.json", "success"),
    Step("getConsumerConfig -n {n} -g G2", "retryQueueNums                          =  2"),
    Step("clusterList -n {n}", "V5_3_3",
         ((r"\d+\.\d+\(\S+\)|\d+-\d+\(.*?\)", "<load>", "rates and waiting"), (r"0 +[-\d.]+ +0\.\d+ +true", "<store>", "the log begins with tables here, so there is an oldest record"))),
    Step("clusterList -n {n} -m", "broker-a"),
    Step("!send {n} PGTraced T1 TagA K1 0 b0 b1 b2 b3"),
    Step("!send {n} PGTraced T1 TagB K2 1 c0"),
    Step("topicStatus -n {n} -t T1", "broker-a", ((r"Topic Put TPS.*", "", "a rate"),), until=r"broker-a 0 0 4 .*broker-a 1 0 1 "),
    Step("topicList -n {n}", "T1",
         ((r"^(RMQ_SYS_TRANS\w*|RMQ_SYS_TRACE_TOPIC|BenchmarkTest|OFFSET_MOVED_EVENT|rmq_sys_\S+|SELF_TEST_TOPIC|DefaultCluster\S*|SCHEDULE_TOPIC_XXXX|broker-a)$",
           "", "system topics come into being at their first use here"),)),
    Step("topicClusterList -n {n} -t T1", "DefaultCluster"),
    Step("queryMsgById -n {n} -i {off} -t T1", "Keys:                [K1]"),
    Step("queryMsgByKey -n {n} -t T1 -k K1", "#QID", until="<id>"),
    Step("queryMsgByUniqueKey -n {n} -t T1 -i {uniq}", "Queue ID:            0"),
    Step("queryMsgByOffset -n {n} -t T1 -b broker-a -i 0 -o 1", "Queue Offset:        1"),
    Step("queryMsgTraceById -n {n} -i {uniq}", "success", ((r"\d+ms", "<t>", "how long it took"),), until="success"),
    Step("producerConnection -n {n} -g PGTraced -t T1", "V5_3_3", until="V5_3_3"),
    Step("producer -b {b}", "PGTraced", ((r"PRODUCE-\d", "PRODUCE", "a counter of the client"),), until="PGTraced"),
    Step("printMsg -n {n} -t T1", "queueOffset=3"),
    Step("printMsgByQueue -n {n} -t T1 -a broker-a -i 0 -p true", "queueOffset=3"),
    Step("queryCq -n {n} -t T1 -q 0 -i 0 -c 3 -b {b}", "max: 4, min: 0"),
    Step("queryCq -n {n} -t T1 -q 0 -i 0 -c 1 -b {b} -g nobody", "is not online!"),
    Step("consumeMessage -n {n} -t T1 -b broker-a -i 0 -o 0 -c 2", "Consume ok"),
    Step("!consume {n} G1 T1 *"),
    Step("consumerProgress -n {n} -g G1", "Consume Diff Total: 0", (RATES, INFLIGHT), until=r"T1 broker-a 0 4 4 .*T1 broker-a 1 1 1 "),
    Step("consumerProgress -n {n}", "G1", (RATES, (r"^(G1 .*CLUSTERING).*", r"\1", "rates"), (r"^TOOLS_CONSUMER.*", "", "groups of tools are not kept"), (r"^%.*", "", "groups without a place"))),
    Step("consumerConnection -n {n} -g G1", "CONSUME_FROM_FIRST_OFFSET"),
    Step("consumerStatus -n {n} -g G1", "Rebalance OK"),
    Step("consumerStatus -n {n} -g G1 -i {client}", "Consumer Properties", compared=False),
    Step("queryMsgById -n {n} -i {off} -t T1 -g G1 -d {client}", "CR_SUCCESS", ((r"spentTimeMills=\d+", "", "how long it took"),)),
    Step("statsAll -n {n} -t T1", "T1", (RATES, OWN_GROUP, FIRST_HOUR)),
    Step("brokerConsumeStats -n {n} -b {b}", "G1", ((r"^.*%RETRY%.*", "", "retry topics are empty"),)),
    Step("!close {n}"),
    Step("cloneGroupOffset -n {n} -s G1 -d G2 -t T1 -o true", "success"),
    Step("statsAll -n {n} -t T1", "G2", (RATES, OWN_GROUP, FIRST_HOUR)),
    Step("resetOffsetByTime -n {n} -g G2 -t T1 -s 0", "broker-a"),
    Step("brokerConsumeStats -n {n} -b {b}", "Diff Total: 5", ((r"^.*%RETRY%.*", "", "retry topics are empty"),)),
    Step("resetOffsetByTime -n {n} -g G2 -t T1 -s now -b {b} -q 0 -o 2", "reset consumer offset to 2"),
    Step("skipAccumulatedMessage -n {n} -g G2 -t T1", "4"),
    Step("brokerConsumeStats -n {n} -b {b}", "Diff Total: 0", ((r"^.*%RETRY%.*", "", "retry topics are empty"),)),
    Step("updateTopicPerm -n {n} -b {b} -t T1 -p 4", "from 6 to 4"),
    Step("updateTopicPerm -n {n} -c DefaultCluster -t T1 -p 6", "from 4 to 6", until="success"),
    Step("updateOrderConf -n {n} -t T1 -m put -v broker-a:2", "success"),
    Step("updateOrderConf -n {n} -t T1 -m get", "broker-a:2"),
    Step("updateOrderConf -n {n} -t T1 -m delete", "success"),
    Step("updateOrderConf -n {n} -t T1 -m get", "CODE: 22"),
    Step("allocateMQ -n {n} -t T1 -i 10.0.0.1,10.0.0.2", "queueId"),
    Step("setConsumeMode -n {n} -b {b} -t T1 -g G1 -m POP -q 1", "success"),
    Step("updateKvConfig -n {n} -s NS -k key -v value", "success"),
    Step("deleteKvConfig -n {n} -s NS -k key", "success"),
    Step("wipeWritePerm -n {n} -b broker-a", "OK", ((r"OK, \d+", "OK", "system topics are fewer here"),)),
    Step("topicRoute -n {n} -t T1", '"perm":4'),
    Step("addWritePerm -n {n} -b broker-a", "OK", ((r"OK, \d+", "OK", "system topics are fewer here"),)),
    Step("topicRoute -n {n} -t T1", '"perm":6'),
    Step("sendMessage -n {n} -t T1 -p hello -k K9 -c TagZ -b broker-a -i 1", "SEND_OK"),
    Step("sendMsgStatus -n {n} -b broker-a -s 16 -c 2", "SEND_OK",
         ((r"rt=\d+ms", "rt", "how long it took"), (r"queueId=\d\],? ?(queueOffset=\d+)?", "", "the topic is made by sending, with queues of another number"))),
    Step("checkMsgSendRT -n {n} -t T1 -a 3 -s 16", "true", ((r"(true +|RT: +)[\d.]+", r"\1", "how long it took"),)),
    Step("brokerStatus -n {n} -b {b}", "V5_3_3",
         ((r"^(\w+) *:.*", r"\1", "values of the moment; the keys are compared"),
          (r"^(commitLogDiskRatio_\S+.*|putMessageDistributeTime|flushedPosition|getTransferedTps|pullWaiting)$", "", "paths are not told; older and newer names"),
          (r"^(schedule\w+|\w*[dD]elay\w*.*)$", "", "progress of delay levels"))),
    Step("getBrokerConfig -n {n} -b {b}", "brokerName", compared=False),
    Step("updateBrokerConfig -n {n} -b {b} -k fileReservedTime -v 48", "success"),
    Step("updateBrokerConfig -n {n} -b {b} -k configBlackList -v x", "CODE: 16"),
    Step("getNamesrvConfig -n {n}", "orderMessageEnable", compared=False),
    Step("updateNamesrvConfig -n {n} -k orderMessageEnable -v true", "success"),
    Step("updateNamesrvConfig -n {n} -k kvConfigPath -v /tmp/x", "CODE: 16"),
    Step("cleanExpiredCQ -n {n} -b {b}", "success"),
    Step("cleanUnusedTopic -n {n} -b {b}", "success"),
    Step("deleteExpiredCommitLog -n {n} -b {b}", "success"),
    Step("haStatus -n {n} -b {b}", "#InSyncSlaveNum", ((r"MaxOffset\t\d+", "", "tables are records, too"),)),
    Step("getBrokerEpoch -n {n} -b broker-a", "CODE: 1"),
    Step("resetMasterFlushOffset -n {n} -b {b} -o 0", "success"),
    Step("exportMetadata -n {n} -b {b} -f {dir}/export -t", ""),
    Step("exportConfigs -n {n} -c DefaultCluster -f {dir}/export", "success"),
    Step("exportMetrics -n {n} -c DefaultCluster -f {dir}/export", "success"),
    Step("deleteSubGroup -n {n} -b {b} -g G1 -r true", "success"),
    Step("consumerProgress -n {n} -g G1", "CODE: "),
    Step("deleteTopic -n {n} -c DefaultCluster -t T1", "success"),
    Step("topicRoute -n {n} -t T1", "CODE: 17"),
    Step("topicStatus -n {n} -t T1", "CODE: 17"),
    Step("updateTopic -n {n} -b {b} -t T1 -r 2 -w 2", "create topic to"),
    Step("topicStatus -n {n} -t T1", "#QID", compared=False, until="broker-a"),
    Step("brokerConsumeStats -n {n} -b {b}", "Diff Total: 0", ((r"^.*%RETRY%.*", "", "retry topics are empty"),)),
    Step("updateTopic -n {n} -b {b} -t a/../b -r 2 -w 2", "CODE: 29"),
    Step("updateTopic -n {n} -b {b} -t TBW102 -r 2 -w 2", "CODE: 29"),
    Step("deleteTopic -n {n} -c DefaultCluster -t SCHEDULE_TOPIC_XXXX", "CODE: 29"),
    Step("queryMsgByKey -n {n} -t T2 -k none", "CODE: "),
    Step("consumerConnection -n {n} -g nobody", "CODE: 17"),
    Step("clusterRT -n {n} -a 2 -s 16 -c DefaultCluster -i 1", "2                 0", limit_ms=5_000, compared=False, until=" 2 0"),
)  # fmt: skip

NOT_RUN: Final[dict[str, str]] = {
    "startMonitoring": "never ends: prints what other commands print, again and again",
    "addBroker": "broker containers: one process is one broker here",
    "removeBroker": "broker containers",
    "updateStaticTopic": "static topics are not supported",
    "remappingStaticTopic": "static topics are not supported",
    "exportMetadataInRocksDB": "reads a directory of files of another format",
    "exportPopRecord": "RocksDB records of pop consumers",
    "rocksDBConfigToJson": "RocksDB files",
    "checkRocksdbCqWriteProgress": "RocksDB files",
    "dumpCompactionLog": "reads a file, asks no server",
    "getSyncStateSet": "needs a controller",
    "getControllerMetaData": "needs a controller",
    "getControllerConfig": "needs a controller",
    "updateControllerConfig": "needs a controller",
    "electMaster": "needs a controller",
    "cleanBrokerMetadata": "needs a controller",
    "getColdDataFlowCtrInfo": "limits of cold reads are the broker's own here",
    "updateColdDataFlowCtrGroupConfig": "limits of cold reads",
    "removeColdDataFlowCtrGroupConfig": "limits of cold reads",
    "setCommitLogReadAheadMode": "the log is not mapped for reading ahead here",
    "createUser": "users: compared in test_accounts.py", "updateUser": "users", "deleteUser": "users", "getUser": "users",
    "listUser": "users", "copyUser": "users", "createAcl": "access lists: likewise", "updateAcl": "access lists",
    "deleteAcl": "access lists", "getAcl": "access lists", "listAcl": "access lists", "copyAcl": "access lists",
}  # fmt: skip
"""Commands that are left out, with the reason."""


def normal(text: str, rules: tuple[Rule, ...]) -> list[str]:
    """What is compared of an output: lines without what may differ, in order of their text (Java's maps have none)."""
    lines = []
    for line in text.splitlines():
        if DROPPED.match(line):
            if "CODE:" not in line:
                continue
            line = "failed: " + line[line.index("CODE:") :]
        for pattern, replacement, _ in (*EVERYWHERE, *rules):
            line = re.sub(pattern, replacement, line)
        line = re.sub(r"\s+", " ", line).strip()
        if line:
            lines.append(line)
    return sorted(lines)
