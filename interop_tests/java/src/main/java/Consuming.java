import java.text.SimpleDateFormat;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Date;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentSkipListSet;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Ways of consuming. */
final class Consuming extends Scenarios {
    static void register() {
        TOGETHER.put("offset-reset", Consuming::reset); // the client itself sleeps for ten seconds
        TOGETHER.put("retry-dead-letter", Consuming::retry);
        TOGETHER.put("from-timestamp", Consuming::fromTimestamp);
        TOGETHER.put("clustering", Consuming::clustering);
        TOGETHER.put("broadcast", Consuming::broadcast);
        TOGETHER.put("tag-filter", Consuming::tags);
        TOGETHER.put("sql-filter", Consuming::sql);
        TOGETHER.put("sql-lost-heartbeat", Consuming::sqlLostHeartbeat);
        TOGETHER.put("pull", Consuming::pull);
        TOGETHER.put("lite-pull-subscribe", Consuming::liteSubscribe);
        TOGETHER.put("lite-pull-assign", Consuming::liteAssign);
    }

    static void send(String scenario, Set<String> bodies) throws Exception {
        for (String body : bodies) {
            stored(producer.send(message(scenario, "tag", body)));
        }
    }

    /** Two members, three queues each or so: together everything once. */
    static void clustering() throws Exception {
        try (Collector one = Collector.of("clustering", "*"); Collector two = Collector.of("clustering", "*")) {
            until(() -> queues(one) > 0 && queues(two) > 0 && queues(one) + queues(two) == 4, () -> queues(one) + " and " + queues(two));
            send("clustering", names("c", 40));
            until(() -> one.got.size() + two.got.size() >= 40, () -> one.got.size() + " and " + two.got.size());
            check(!one.got.isEmpty() && !two.got.isEmpty(), "one of the two got nothing");
            Collection<MessageExt> all = new ArrayList<>(one.got);
            all.addAll(two.got);
            same(texts(all), new ArrayList<>(names("c", 40)));
        }
    }

    static int queues(Collector member) {
        return queues(member.consumer);
    }

    static int queues(DefaultMQPushConsumer member) {
        return (int) member.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet().stream()
            .filter(queue -> !queue.getTopic().startsWith("%RETRY%")).count();
    }

    static void broadcast() throws Exception {
        List<Collector> members = new ArrayList<>();
        for (int i = 0; i < 2; i++) {
            Collector member = new Collector(consumer("broadcast"));
            member.consumer.setInstanceName("broadcast-" + i); // by itself a client has one name per process here
            for (var model : member.consumer.getMessageModel().getDeclaringClass().getEnumConstants()) {
                if (model.name().equals("BROADCASTING")) {
                    member.consumer.setMessageModel(model);
                }
            }
            member.consumer.subscribe(topic("broadcast"), "*");
            member.consumer.start();
            members.add(member);
        }
        for (Collector member : members) {
            until(() -> queues(member) == 4, () -> queues(member) + " queues");
        }
        send("broadcast", names("b", 20));
        for (Collector member : members) {
            member.exactly(names("b", 20));
            member.close();
        }
    }

    /** Consumed in vain, again after a second, then dead. */
    static void retry() throws Exception {
        SendResult sent = producer.send(message("retry-dead-letter", "tag", "vain"));
        // A set: a consumer that waits too long for the answer to its sending back does it once more.
        Set<Integer> times = new ConcurrentSkipListSet<>();
        DefaultMQPushConsumer consumer = consumer("retry-dead-letter");
        consumer.setMaxReconsumeTimes(1);
        consumer.subscribe(topic("retry-dead-letter"), "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (found, context) -> {
            context.setDelayLevelWhenNextConsume(1);
            found.forEach(one -> times.add(one.getReconsumeTimes()));
            return ConsumeConcurrentlyStatus.RECONSUME_LATER;
        });
        consumer.start();
        String dead = "%DLQ%" + prefix + "-retry-dead-letter";
        MessageExt one = pulled(new MessageQueue(dead, sent.getMessageQueue().getBrokerName(), 0), topic("retry-dead-letter"), 1).get(0);
        same(times, Set.of(0, 1));
        same(List.of(text(one), one.getMsgId(), one.getReconsumeTimes()), List.of("vain", sent.getMsgId(), 2));
        consumer.shutdown();
    }

    static List<MessageExt> pulled(MessageQueue queue, String registered, int count) throws Exception {
        DefaultMQPullConsumer reader = new DefaultMQPullConsumer(prefix + "-reader");
        reader.setNamesrvAddr(nameservers);
        reader.setRegisterTopics(Set.of(registered)); // whose route tells it the broker
        reader.setMqClientApiTimeout(CALL_MS);
        reader.setConsumerPullTimeoutMillis(CALL_MS);
        reader.start();
        List<MessageExt> found = new ArrayList<>();
        until(() -> {
            try {
                PullResult result = reader.pull(queue, "*", found.size(), 32);
                if (result.getPullStatus() == PullStatus.FOUND) {
                    found.addAll(result.getMsgFoundList());
                }
            } catch (MQBrokerException | MQClientException notYet) {
                return false;
            } catch (Exception error) {
                throw new IllegalStateException(error);
            }
            return found.size() >= count;
        }, () -> found.size() + " of " + count + " in " + queue);
        reader.shutdown();
        return found;
    }

    static void tags() throws Exception {
        // "AaAa" and "BBBB" have the same hash: the broker passes both, the client tells them apart.
        for (String tag : new String[] {"red", "green", "blue", "AaAa", "BBBB", ""}) {
            stored(producer.send(message("tag-filter", tag, "t-" + tag)));
        }
        try (Collector seen = Collector.of("tag-filter", "red || blue || AaAa")) {
            seen.exactly(Set.of("t-red", "t-blue", "t-AaAa"));
        }
    }

    static void sendPriced(String scenario) throws Exception {
        for (int i = 0; i < 20; i++) {
            Message one = message(scenario, i % 2 == 0 ? "even" : "odd", "p" + i);
            one.putUserProperty("price", "" + i);
            if (i != 12) {
                one.putUserProperty("region", i < 15 ? "eu" : "us");
            }
            stored(producer.send(one));
        }
    }

    static void sql() throws Exception {
        sendPriced("sql-filter");
        try (Collector seen = Collector.sql("sql-filter", "price BETWEEN 10 AND 17 AND region = 'eu' AND TAGS = 'even'")) {
            seen.exactly(Set.of("p10", "p14"));
        }
    }

    /** The client pulls with a subscription that is newer than what its last heartbeat said, and the next one comes when all is over. */
    static void sqlLostHeartbeat() throws Exception {
        DefaultMQPushConsumer silent = consumer("sql-lost-heartbeat");
        silent.setInstanceName("silent"); // a client of its own, with its own heartbeats
        silent.setHeartbeatBrokerInterval(20 * LIMIT_S * 1000);
        try (Collector seen = new Collector(silent)) {
            silent.subscribe(topic("sql-lost-heartbeat"), MessageSelector.bySql("price > 17"));
            silent.start();
            until(() -> queues(seen) == 4, () -> queues(seen) + " queues");
            for (var data : seen.consumer.getDefaultMQPushConsumerImpl().getSubscriptionInner().values()) {
                data.setSubVersion(System.currentTimeMillis() + 1000);
            }
            sendPriced("sql-lost-heartbeat");
            seen.exactly(Set.of("p18", "p19"));
        }
    }

    static void pull() throws Exception {
        send("pull", names("p", 40));
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(prefix + "-pull");
        consumer.setNamesrvAddr(nameservers);
        consumer.setMqClientApiTimeout(CALL_MS);
        consumer.setConsumerPullTimeoutMillis(CALL_MS);
        consumer.start();
        Set<String> found = new TreeSet<>();
        for (MessageQueue queue : again(() -> consumer.fetchSubscribeMessageQueues(topic("pull")))) {
            long end = again(() -> consumer.maxOffset(queue));
            long at = Math.max(0, again(() -> consumer.fetchConsumeOffset(queue, true)));
            same(at, 0L);
            while (at < end) {
                PullResult result = consumer.pull(queue, "*", at, 7);
                same(result.getPullStatus(), PullStatus.FOUND);
                result.getMsgFoundList().forEach(one -> found.add(text(one)));
                at = result.getNextBeginOffset();
            }
            same(consumer.pull(queue, "*", at, 7).getPullStatus(), PullStatus.NO_NEW_MSG);
            same(consumer.pull(queue, "*", at + 5, 7).getPullStatus(), PullStatus.OFFSET_ILLEGAL);
            consumer.updateConsumeOffset(queue, at);
            consumer.getDefaultMQPullConsumerImpl().getOffsetStore().persist(queue);
            until(() -> committed(consumer, queue) == end, () -> "committed " + committed(consumer, queue) + ", not " + end);
        }
        same(found, names("p", 40));
        consumer.shutdown();
    }

    static long committed(DefaultMQPullConsumer consumer, MessageQueue queue) {
        try {
            return consumer.fetchConsumeOffset(queue, true);
        } catch (MQClientException error) {
            throw new IllegalStateException(error);
        }
    }

    static DefaultLitePullConsumer lite(String scenario) {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(prefix + "-" + scenario);
        consumer.setNamesrvAddr(nameservers);
        consumer.setMqClientApiTimeout(CALL_MS);
        consumer.setConsumerPullTimeoutMillis(CALL_MS);
        consumer.setPullThreadNums(8); // each queue's long poll keeps one
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAutoCommit(false);
        return consumer;
    }

    static void polled(DefaultLitePullConsumer consumer, Set<String> wanted) throws Exception {
        Set<String> seen = new TreeSet<>();
        until(() -> {
            consumer.poll(200).forEach(one -> seen.add(text(one)));
            return seen.containsAll(wanted);
        }, () -> "polled " + seen);
        same(seen, wanted);
    }

    static void liteSubscribe() throws Exception {
        send("lite-pull-subscribe", names("l", 20));
        DefaultLitePullConsumer first = lite("lite-pull-subscribe");
        first.subscribe(topic("lite-pull-subscribe"), "*");
        first.start();
        polled(first, names("l", 20));
        for (MessageQueue queue : first.assignment()) {
            long end = producer.maxOffset(queue);
            until(() -> {
                try {
                    first.commitSync();
                    return first.committed(queue) == end;
                } catch (MQClientException error) {
                    throw new IllegalStateException(error);
                }
            }, () -> "not committed " + queue);
        }
        first.shutdown();
        send("lite-pull-subscribe", names("m", 5));
        DefaultLitePullConsumer second = lite("lite-pull-subscribe");
        second.subscribe(topic("lite-pull-subscribe"), "*");
        second.start();
        polled(second, names("m", 5));
        second.shutdown();
    }

    /** What the client was just fetching when it is told to seek comes, too: so a message may come twice. */
    static void liteAssign() throws Exception {
        send("lite-pull-assign", names("l", 12));
        DefaultLitePullConsumer consumer = lite("lite-pull-assign");
        consumer.start();
        Collection<MessageQueue> queues = again(() -> consumer.fetchMessageQueues(topic("lite-pull-assign")));
        consumer.assign(queues);
        for (MessageQueue queue : queues) {
            consumer.seekToBegin(queue);
        }
        polled(consumer, names("l", 12));
        MessageQueue one = queues.iterator().next();
        long last = producer.maxOffset(one) - 1;
        consumer.seek(one, last);
        List<MessageExt> found = new ArrayList<>();
        until(() -> {
            found.addAll(consumer.poll(200));
            return found.stream().anyMatch(each -> each.getQueueId() == one.getQueueId() && each.getQueueOffset() == last);
        }, () -> "nothing after a seek");
        consumer.shutdown();
    }

    /** In a queue that begins at 0 a new group begins there, whatever it asked for: so this topic is deleted and made again first. */
    static void fromTimestamp() throws Exception {
        send("from-timestamp", names("before", 8));
        outside("remake from-timestamp");
        send("from-timestamp", names("old", 5));
        long next = (System.currentTimeMillis() / 1000 + 1) * 1000; // the client's format knows seconds only
        until(() -> System.currentTimeMillis() >= next + 50, () -> "the next second");
        send("from-timestamp", names("new", 5));
        Collector seen = new Collector(consumer("from-timestamp"));
        seen.consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_TIMESTAMP);
        seen.consumer.setConsumeTimestamp(new SimpleDateFormat("yyyyMMddHHmmss").format(new Date(next)));
        seen.consumer.subscribe(topic("from-timestamp"), "*");
        seen.consumer.start();
        seen.exactly(names("new", 5));
        seen.close();
    }

    /** The members are told to go back while they consume, as mqadmin resetOffsetByTime has it done. */
    static void reset() throws Exception {
        long begun = System.currentTimeMillis() - 60_000;
        send("offset-reset", names("r", 10));
        try (Collector seen = Collector.of("offset-reset", "*")) {
            seen.exactly(names("r", 10));
            until(() -> seen.consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().values().stream()
                .allMatch(queue -> queue.getMsgCount().get() == 0), () -> "messages still in hand");
            var offsets = producer.getDefaultMQProducerImpl().getMqClientFactory().getMQClientAPIImpl()
                .invokeBrokerToResetOffset(broker, topic("offset-reset"), prefix + "-offset-reset", begun, true, CALL_MS);
            same(offsets.size(), 4);
            until(() -> seen.got.size() >= 20, () -> "seen " + seen.counts());
            seen.counts().forEach((body, times) -> same(body + " " + times, body + " 2"));
        }
    }
}
