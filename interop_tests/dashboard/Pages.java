import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.trace.TraceContext;
import org.apache.rocketmq.client.trace.TraceDataEncoder;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.stats.Stats;
import org.apache.rocketmq.common.topic.TopicValidator;
import org.apache.rocketmq.remoting.protocol.admin.ConsumeStats;
import org.apache.rocketmq.remoting.protocol.admin.OffsetWrapper;
import org.apache.rocketmq.remoting.protocol.admin.RollbackStats;
import org.apache.rocketmq.remoting.protocol.admin.TopicOffset;
import org.apache.rocketmq.remoting.protocol.admin.TopicStatsTable;
import org.apache.rocketmq.remoting.protocol.body.BrokerStatsData;
import org.apache.rocketmq.remoting.protocol.body.ClusterInfo;
import org.apache.rocketmq.remoting.protocol.body.Connection;
import org.apache.rocketmq.remoting.protocol.body.ConsumerConnection;
import org.apache.rocketmq.remoting.protocol.body.ConsumerRunningInfo;
import org.apache.rocketmq.remoting.protocol.body.ProducerConnection;
import org.apache.rocketmq.remoting.protocol.route.BrokerData;
import org.apache.rocketmq.remoting.protocol.route.QueueData;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;
import org.apache.rocketmq.tools.admin.api.MessageTrack;

/**
 * What the pages of rocketmq-dashboard ask of a cluster, with the library that it uses (DefaultMQAdminExt), in the order in which its pages
 * ask. Prints a line "page what value" for each thing that a page shows; values that differ from run to run are printed as what they are.
 */
public class Pages {
    private static final String TOPIC = "Orders";
    private static final String GROUP = "OrderReaders";
    private static final String AWAY = "AwayReaders";
    private static final int QUEUES = 4;
    private static final int MESSAGES = 20;
    private static final long CALL_MS = 60_000;
    private static final long LIMIT_MS = 120_000;

    private final String nameserver;
    private final DefaultMQAdminExt admin;
    private final long begin = System.currentTimeMillis();
    private final List<SendResult> sent = new ArrayList<>();
    private String broker;
    private String brokerName;
    private DefaultMQProducer producer;
    private DefaultMQPushConsumer consumer;
    private volatile boolean refusing = true;

    private Pages(String nameserver) {
        this.nameserver = nameserver;
        admin = new DefaultMQAdminExt(CALL_MS);
        admin.setMqClientApiTimeout((int) CALL_MS);
        admin.setNamesrvAddr(nameserver);
        admin.setVipChannelEnabled(true); // the dashboard's own default
        admin.setInstanceName("admin-" + nameserver.replace(':', '-'));
    }

    public static void main(String[] args) {
        Program.run(words -> {
            Pages pages = new Pages(words[0]);
            pages.admin.start();
            pages.run();
        }, args);
    }

    private void run() throws Exception {
        cluster();
        makeAndFill();
        topics();
        consumers();
        messages();
        traces();
        producers();
        deadLetters();
        numbers();
        resets();
        deletions();
        System.out.println("END");
    }

    private static void say(String page, String what, Object value) {
        System.out.println(page + " " + what + " " + value);
    }

    /** Until a page shows what it will show: answers that do not know it yet, and refusals, are asked again. */
    private static <T> T until(String what, Callable<T> ask, java.util.function.Predicate<T> enough) throws Exception {
        long end = System.currentTimeMillis() + LIMIT_MS;
        Object last = null;
        while (System.currentTimeMillis() < end) {
            try {
                T found = ask.call();
                last = found;
                if (enough.test(found)) {
                    return found;
                }
            } catch (MQClientException | MQBrokerException error) {
                last = error;
            }
            Thread.sleep(50);
        }
        throw new IllegalStateException("never: " + what + "; last: " + last);
    }

    private static boolean number(String text) {
        for (String part : text.trim().split("\\s+")) {
            Double.parseDouble(part);
        }
        return true;
    }

    private static boolean sampled(Map<String, String> stats) {
        String transferred = stats.getOrDefault("getTransferredTps", stats.getOrDefault("getTransferedTps", ""));
        return !stats.getOrDefault("putTps", "").isBlank() && !transferred.isBlank();
    }

    private void cluster() throws Exception {
        ClusterInfo info = until("a cluster", admin::examineBrokerClusterInfo, found -> !found.getBrokerAddrTable().isEmpty());
        say("cluster", "clusters", new TreeMap<>(info.getClusterAddrTable()));
        for (BrokerData data : info.getBrokerAddrTable().values()) {
            broker = data.selectBrokerAddr();
            brokerName = data.getBrokerName();
            say("cluster", "broker", data.getCluster() + "/" + brokerName + " " + new TreeSet<>(data.getBrokerAddrs().keySet()));
            // A broker that has just started has no samples of its rates: the page shows nothing until it has.
            Map<String, String> stats = until("rates", () -> admin.fetchBrokerRuntimeStats(broker).getTable(), Pages::sampled);
            for (String key : new String[] {"putTps", "msgPutTotalTodayMorning", "msgPutTotalYesterdayMorning",
                "msgPutTotalTodayNow", "msgGetTotalTodayMorning", "msgGetTotalYesterdayMorning", "msgGetTotalTodayNow"}) {
                say("cluster", key, number(stats.get(key)));
            }
            // Written with one r by brokers of 4.x and with two by those of 5.x; pages know both.
            say("cluster", "getTransferredTps", number(stats.getOrDefault("getTransferredTps", stats.get("getTransferedTps"))));
            say("cluster", "brokerVersionDesc", stats.get("brokerVersionDesc") != null);
        }
        Properties settings = admin.getBrokerConfig(broker);
        for (String key : new String[] {"brokerName", "brokerClusterName", "brokerId", "autoCreateTopicEnable", "brokerRole"}) {
            say("cluster", key, settings.getProperty(key));
        }
    }

    private void makeAndFill() throws Exception {
        TopicConfig config = new TopicConfig(TOPIC, QUEUES, QUEUES, 6);
        Map<String, String> attributes = new HashMap<>();
        attributes.put("+message.type", "NORMAL");
        config.setAttributes(attributes);
        admin.createAndUpdateTopicConfig(broker, config);
        for (String name : new String[] {GROUP, AWAY}) {
            SubscriptionGroupConfig group = new SubscriptionGroupConfig();
            group.setGroupName(name);
            group.setRetryMaxTimes(name.equals(GROUP) ? 0 : 16);
            admin.createAndUpdateSubscriptionGroupConfig(broker, group);
        }
        until("a route", () -> admin.examineTopicRouteInfo(TOPIC), found -> !found.getQueueDatas().isEmpty());
        consumer = new DefaultMQPushConsumer(GROUP, true, null);
        consumer.setNamesrvAddr(nameserver);
        consumer.setMqClientApiTimeout((int) CALL_MS);
        consumer.setInstanceName("consumer-" + nameserver.replace(':', '-'));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPersistConsumerOffsetInterval(200);
        consumer.setMaxReconsumeTimes(0);
        consumer.subscribe(TOPIC, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) ->
            refusing && messages.get(0).getKeys().equals("key-3") ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS);
        consumer.start();
        producer = new DefaultMQProducer(MixAll.SELF_TEST_PRODUCER_GROUP, null, true, TopicValidator.RMQ_SYS_TRACE_TOPIC);
        producer.setNamesrvAddr(nameserver);
        producer.setMqClientApiTimeout((int) CALL_MS);
        producer.setSendMsgTimeout((int) CALL_MS);
        producer.setInstanceName("producer-" + nameserver.replace(':', '-'));
        producer.start();
        // Traces of consumers begin when there is the topic for them, which the first trace of a producer makes.
        producer.send(new Message("First", "x".getBytes(StandardCharsets.UTF_8)));
        until("a topic of traces", () -> admin.examineTopicRouteInfo(TopicValidator.RMQ_SYS_TRACE_TOPIC), found -> !found.getQueueDatas().isEmpty());
        List<MessageQueue> queues = until("queues", () -> producer.fetchPublishMessageQueues(TOPIC), found -> found.size() == QUEUES);
        for (int number = 0; number < MESSAGES; number++) {
            byte[] body = ("body " + number).getBytes(StandardCharsets.UTF_8);
            sent.add(producer.send(new Message(TOPIC, "Tag", "key-" + number, body), queues.get(number % QUEUES)));
        }
    }

    private void topics() throws Exception {
        Set<String> own = new TreeSet<>();
        for (String name : until("all topics", admin::fetchAllTopicList, found -> found.getTopicList().contains("%DLQ%" + GROUP)).getTopicList()) {
            if (name.contains(TOPIC) || name.contains(GROUP)) {
                own.add(name);
            }
        }
        say("topics", "list", own);
        Set<String> system = producer.getDefaultMQProducerImpl().getmQClientFactory().getMQClientAPIImpl().getSystemTopicList(CALL_MS).getTopicList();
        say("topics", "systemList", system.contains(TopicValidator.RMQ_SYS_SCHEDULE_TOPIC) + " " + system.contains(TopicValidator.RMQ_SYS_TRANS_HALF_TOPIC));
        Map<String, TopicConfig> all = admin.getAllTopicConfig(broker, CALL_MS).getTopicConfigTable();
        say("topics", "typeOf", all.get(TOPIC).getAttributes().get("message.type"));
        say("topics", "retryTopicListed", all.containsKey("%RETRY%" + GROUP));
        TopicStatsTable stats = admin.examineTopicStats(TOPIC);
        Map<String, String> shown = new TreeMap<>();
        for (Map.Entry<MessageQueue, TopicOffset> entry : stats.getOffsetTable().entrySet()) {
            TopicOffset offset = entry.getValue();
            shown.put(entry.getKey().getBrokerName() + "/" + entry.getKey().getQueueId(),
                offset.getMinOffset() + "-" + offset.getMaxOffset() + " " + (offset.getLastUpdateTimestamp() >= begin));
        }
        say("topics", "status", shown);
        for (QueueData data : admin.examineTopicRouteInfo(TOPIC).getQueueDatas()) {
            say("topics", "route", data.getBrokerName() + " " + data.getReadQueueNums() + " " + data.getWriteQueueNums() + " " + data.getPerm());
        }
        TopicConfig config = admin.examineTopicConfig(broker, TOPIC);
        say("topics", "config", config.getTopicName() + " " + config.getReadQueueNums() + " " + config.getWriteQueueNums() + " " + config.getPerm() + " "
            + config.isOrder() + " " + config.getAttributes());
        Set<String> readers = until("readers", () -> admin.queryTopicConsumeByWho(TOPIC), found -> found.getGroupList().contains(GROUP)).getGroupList();
        say("topics", "consumers", readers.contains(GROUP));
    }

    private void consumers() throws Exception {
        Map<String, SubscriptionGroupConfig> all = admin.getAllSubscriptionGroup(broker, CALL_MS).getSubscriptionGroupTable();
        say("consumers", "list", all.containsKey(GROUP) + " " + all.containsKey(AWAY) + " orderly=" + all.get(GROUP).isConsumeMessageOrderly());
        ConsumeStats stats = until("no lag", () -> admin.examineConsumeStats(GROUP),
            found -> found.computeTotalDiff() == 0 && consumed(found) == MESSAGES);
        say("consumers", "lag", stats.computeTotalDiff() + " tps=" + (stats.getConsumeTps() >= 0));
        Map<String, String> shown = new TreeMap<>();
        for (Map.Entry<MessageQueue, OffsetWrapper> entry : admin.examineConsumeStats(broker, GROUP, null, CALL_MS).getOffsetTable().entrySet()) {
            OffsetWrapper offset = entry.getValue();
            boolean topic = entry.getKey().getTopic().equals(TOPIC);
            shown.put(entry.getKey().getTopic() + "/" + entry.getKey().getQueueId(),
                offset.getBrokerOffset() + " " + offset.getConsumerOffset() + (topic ? " " + (offset.getLastTimestamp() >= begin) : ""));
        }
        say("consumers", "details", shown);
        say("consumers", "ofTopic", admin.examineConsumeStats(GROUP, TOPIC).getOffsetTable().size());
        try {
            say("consumers", "away", admin.examineConsumeStats(broker, AWAY, null, CALL_MS).getOffsetTable().size());
        } catch (MQBrokerException error) {
            say("consumers", "away", error.getClass().getSimpleName());
        }
        ConsumerConnection connection = admin.examineConsumerConnectionInfo(GROUP);
        say("consumers", "connection", connection.getConnectionSet().size() + " " + connection.getMessageModel() + " " + connection.getConsumeType()
            + " " + connection.getConsumeFromWhere() + " " + new TreeSet<>(connection.getSubscriptionTable().keySet()) + " version=" + connection.computeMinVersion());
        Connection client = admin.examineConsumerConnectionInfo(GROUP, broker).getConnectionSet().iterator().next();
        say("consumers", "client", client.getClientId().equals(consumer.buildMQClientId()) + " " + client.getLanguage() + " " + client.getClientAddr().startsWith("127.0.0.1:"));
        ConsumerRunningInfo running = until("queues of the client", () -> admin.getConsumerRunningInfo(GROUP, client.getClientId(), false),
            found -> found.getMqTable().size() > QUEUES);
        int own = 0;
        for (MessageQueue queue : running.getMqTable().keySet()) {
            own += queue.getTopic().equals(TOPIC) ? 1 : 0;
        }
        say("consumers", "running", own + " " + running.getSubscriptionSet().size() + " " + running.getProperties().getProperty(ConsumerRunningInfo.PROP_CONSUME_TYPE));
        SubscriptionGroupConfig config = admin.examineSubscriptionGroupConfig(broker, GROUP);
        say("consumers", "config", config.getGroupName() + " " + config.isConsumeEnable() + " " + config.isConsumeBroadcastEnable() + " "
            + config.getRetryMaxTimes() + " " + config.getRetryQueueNums() + " " + config.getBrokerId() + " " + config.getWhichBrokerWhenConsumeSlowly());
    }

    private static long consumed(ConsumeStats stats) {
        long all = 0;
        for (Map.Entry<MessageQueue, OffsetWrapper> entry : stats.getOffsetTable().entrySet()) {
            all += entry.getKey().getTopic().equals(TOPIC) ? entry.getValue().getConsumerOffset() : 0;
        }
        return all;
    }

    private static String shown(MessageExt message) {
        return message.getTopic() + " " + message.getTags() + " " + message.getKeys() + " " + message.getQueueId() + "@" + message.getQueueOffset() + " "
            + message.getReconsumeTimes() + " " + message.getSysFlag() + " " + message.getBodyCRC() + " "
            + (message.getBody() == null ? null : new String(message.getBody(), StandardCharsets.UTF_8));
    }

    private void messages() throws Exception {
        SendResult result = sent.get(7);
        MessageExt message = until("a message by its id", () -> admin.viewMessage(TOPIC, result.getMsgId()), found -> found != null);
        say("messages", "byUniqueId", shown(message) + " " + message.getMsgId().equals(result.getMsgId()));
        say("messages", "byOffsetId", shown(admin.viewMessage(TOPIC, result.getOffsetMsgId())));
        for (MessageTrack track : until("a track", () -> admin.messageTrackDetail(message), found -> !found.isEmpty())) {
            if (track.getConsumerGroup().equals(GROUP)) { // the tool itself is another reader, with some brokers
                say("messages", "track", track.getTrackType());
            }
        }
        List<MessageExt> byKey = until("a message by its key",
            () -> admin.queryMessage(TOPIC, "key-7", 64, 0, System.currentTimeMillis()).getMessageList(), found -> !found.isEmpty());
        say("messages", "byKey", byKey.size() + " " + shown(byKey.get(0)));
        try {
            admin.queryMessage(TOPIC, "no-such-key", 64, 0, System.currentTimeMillis());
            say("messages", "byUnknownKey", "found");
        } catch (MQClientException error) {
            say("messages", "byUnknownKey", error.getResponseCode());
        }
        say("messages", "byTime", byTime(TOPIC, begin, System.currentTimeMillis()).size() + " " + byTime(TOPIC, 0, begin - 1).size());
        say("messages", "directly", admin.consumeMessageDirectly(GROUP, consumer.buildMQClientId(), TOPIC, result.getMsgId()).getConsumeResult());
    }

    /** The list of a time range: where it begins and ends in each queue, then pulls of 32, filtered by the time of storing. */
    private List<String> byTime(String topic, long from, long to) throws Exception {
        DefaultMQPullConsumer puller = new DefaultMQPullConsumer(MixAll.TOOLS_CONSUMER_GROUP);
        puller.setNamesrvAddr(nameserver);
        puller.setMqClientApiTimeout((int) CALL_MS);
        puller.setConsumerPullTimeoutMillis(CALL_MS);
        puller.setInstanceName("puller-" + System.nanoTime());
        puller.start();
        try {
            List<String> found = new ArrayList<>();
            for (MessageQueue queue : puller.fetchSubscribeMessageQueues(topic)) {
                long last = puller.searchOffset(queue, to);
                for (long offset = puller.searchOffset(queue, from); offset <= last; ) {
                    PullResult result = puller.pull(queue, "*", offset, 32);
                    offset = result.getNextBeginOffset();
                    if (result.getPullStatus() != PullStatus.FOUND) {
                        break;
                    }
                    for (MessageExt message : result.getMsgFoundList()) {
                        if (message.getStoreTimestamp() >= from && message.getStoreTimestamp() <= to) {
                            found.add(message.getMsgId());
                        }
                    }
                }
            }
            return found;
        } finally {
            puller.shutdown();
        }
    }

    private void traces() throws Exception {
        String id = sent.get(5).getMsgId();
        Set<String> types = new TreeSet<>();
        until("a trace of both sides", () -> {
            for (MessageExt message : admin.queryMessage(TopicValidator.RMQ_SYS_TRACE_TOPIC, id, 64, 0, System.currentTimeMillis()).getMessageList()) {
                for (TraceContext context : TraceDataEncoder.decoderFromTraceDataString(new String(message.getBody(), StandardCharsets.UTF_8))) {
                    if (context.getTraceBeans().get(0).getMsgId().equals(id)) {
                        types.add(context.getTraceType() + " " + context.isSuccess() + " " + context.getGroupName());
                    }
                }
            }
            return types;
        }, found -> found.size() >= 3);
        say("trace", "graph", types);
    }

    private void producers() throws Exception {
        ProducerConnection found = until("a producer", () -> admin.examineProducerConnectionInfo(MixAll.SELF_TEST_PRODUCER_GROUP, TOPIC),
            each -> !each.getConnectionSet().isEmpty());
        Connection client = found.getConnectionSet().iterator().next();
        say("producer", "connection", found.getConnectionSet().size() + " " + client.getClientId().equals(producer.buildMQClientId()) + " " + client.getLanguage());
    }

    private void deadLetters() throws Exception {
        String topic = "%DLQ%" + GROUP;
        for (QueueData data : admin.examineTopicRouteInfo(topic).getQueueDatas()) {
            say("dlq", "route", data.getReadQueueNums() + " " + data.getWriteQueueNums() + " " + data.getPerm());
        }
        List<String> found = until("a dead letter", () -> byTime(topic, begin, System.currentTimeMillis()), each -> each.size() == 1);
        say("dlq", "id", found.get(0).equals(sent.get(3).getMsgId()));
        MessageExt message = admin.viewMessage(topic, found.get(0));
        say("dlq", "message", shown(message) + " " + message.getProperty("DLQ_ORIGIN_TOPIC") + " " + message.getProperty("RETRY_TOPIC"));
        refusing = false;
        say("dlq", "resend", admin.consumeMessageDirectly(GROUP, consumer.buildMQClientId(), topic, found.get(0)).getConsumeResult());
        try {
            admin.examineTopicRouteInfo("%DLQ%" + AWAY);
            say("dlq", "none", "found");
        } catch (MQClientException error) {
            say("dlq", "none", error.getResponseCode());
        }
    }

    private void numbers() throws Exception {
        BrokerStatsData put = until("a number", () -> admin.viewBrokerStatsData(broker, Stats.TOPIC_PUT_NUMS, TOPIC), found -> found != null);
        say("dashboard", "put", put.getStatsMinute() != null && put.getStatsHour() != null && put.getStatsDay() != null);
        BrokerStatsData got = until("a number", () -> admin.viewBrokerStatsData(broker, Stats.GROUP_GET_NUMS, TOPIC + "@" + GROUP), found -> found != null);
        say("dashboard", "got", got.getStatsMinute().getTps() >= 0);
    }

    private void resets() throws Exception {
        Map<MessageQueue, Long> reset = admin.resetOffsetByTimestamp(TOPIC, GROUP, begin, true);
        Map<String, Long> shown = new TreeMap<>();
        reset.forEach((queue, offset) -> shown.put(queue.getBrokerName() + "/" + queue.getQueueId(), offset));
        say("reset", "online", shown);
        try {
            admin.resetOffsetByTimestamp(TOPIC, AWAY, begin, true);
            say("reset", "offline", "done");
        } catch (MQClientException error) {
            say("reset", "offline", error.getResponseCode());
        }
        List<String> old = new ArrayList<>();
        for (RollbackStats each : admin.resetOffsetByTimestampOld(AWAY, TOPIC, begin, true)) {
            old.add(each.getBrokerName() + "/" + each.getQueueId() + " " + each.getBrokerOffset() + " " + each.getRollbackOffset());
        }
        Collections.sort(old);
        say("reset", "offlineOld", old);
    }

    private void deletions() throws Exception {
        consumer.shutdown();
        producer.shutdown();
        Set<String> masters = new HashSet<>(Collections.singleton(broker));
        Set<String> nameservers = new HashSet<>(Collections.singleton(nameserver));
        for (String group : new String[] {GROUP, AWAY}) {
            admin.deleteSubscriptionGroup(broker, group, true);
            for (String topic : new String[] {"%RETRY%" + group, "%DLQ%" + group}) {
                admin.deleteTopicInBroker(masters, topic);
                admin.deleteTopicInNameServer(nameservers, topic);
            }
        }
        admin.deleteTopicInBroker(masters, TOPIC);
        admin.deleteTopicInNameServer(nameservers, TOPIC);
        until("nothing left", admin::fetchAllTopicList, found -> found.getTopicList().stream().noneMatch(name -> name.contains(TOPIC) || name.contains(GROUP)));
        Map<String, SubscriptionGroupConfig> groups = admin.getAllSubscriptionGroup(broker, CALL_MS).getSubscriptionGroupTable();
        say("delete", "groups", groups.containsKey(GROUP) + " " + groups.containsKey(AWAY));
    }
}
