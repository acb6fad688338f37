import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentSkipListSet;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Ways of sending. */
final class Sending extends Scenarios {
    static void register() {
        TOGETHER.put("delay-level", Sending::delayLevel);
        TOGETHER.put("transaction", Sending::transaction);
        TOGETHER.put("ordered", Sending::ordered);
        TOGETHER.put("request-reply", Sending::requestReply);
        TOGETHER.put("sync", Sending::sync);
        TOGETHER.put("async", Sending::async);
        TOGETHER.put("one-way", Sending::oneWay);
        TOGETHER.put("batch", Sending::batch);
        TOGETHER.put("compressed-zlib", () -> compressed("compressed-zlib"));
        TOGETHER.put("query", Sending::query);
    }

    static void sync() throws Exception {
        Set<String> ids = new TreeSet<>();
        for (String body : names("s", 20)) {
            Message one = message("sync", "tag", body);
            one.putUserProperty("own", "of " + body);
            SendResult sent = producer.send(one);
            stored(sent);
            ids.add(sent.getMsgId());
        }
        try (Collector seen = Collector.of("sync", "*")) {
            for (MessageExt one : seen.exactly(names("s", 20))) {
                String body = text(one);
                same(Arrays.asList(one.getTags(), one.getKeys(), one.getUserProperty("own"), one.getReconsumeTimes()),
                    Arrays.asList("tag", "key-" + body, "of " + body, 0));
                check(ids.remove(one.getMsgId()), "foreign id " + one.getMsgId());
            }
        }
    }

    static void async() throws Exception {
        CountDownLatch all = new CountDownLatch(199);
        Set<String> failed = new ConcurrentSkipListSet<>();
        stored(producer.send(message("async", "tag", "a0"))); // finds the route: the others' answers would say that there is none
        Set<String> others = names("a", 200);
        others.remove("a0");
        for (String body : others) {
            producer.send(message("async", "tag", body), new SendCallback() {
                @Override
                public void onSuccess(SendResult sent) {
                    all.countDown();
                }

                @Override
                public void onException(Throwable error) {
                    failed.add(String.valueOf(error));
                    all.countDown();
                }
            });
        }
        check(all.await(LIMIT_S, TimeUnit.SECONDS), all.getCount() + " sends without an answer");
        same(failed, Set.of());
        try (Collector seen = Collector.of("async", "*")) {
            seen.exactly(names("a", 200));
        }
    }

    static void oneWay() throws Exception {
        for (String body : names("o", 20)) {
            producer.sendOneway(message("one-way", "tag", body));
        }
        try (Collector seen = Collector.of("one-way", "*")) {
            seen.exactly(names("o", 20));
        }
    }

    static void batch() throws Exception {
        List<Message> batch = new ArrayList<>();
        for (String body : names("b", 30)) {
            batch.add(message("batch", "tag-" + body, body));
        }
        SendResult sent = producer.send(batch);
        stored(sent);
        same(sent.getOffsetMsgId().split(",").length, 30);
        try (Collector seen = Collector.of("batch", "*")) {
            Set<Integer> queues = new TreeSet<>();
            for (MessageExt one : seen.exactly(names("b", 30))) {
                same(one.getTags(), "tag-" + text(one));
                queues.add(one.getQueueId());
            }
            same(queues.size(), 1);
        }
    }

    /** Three keys over four queues, two consumers of one group: each key's messages one after the other. */
    static void ordered() throws Exception {
        String[] keys = {"red", "green", "blue"};
        Map<String, List<Integer>> seen = new ConcurrentHashMap<>();
        Set<String> busy = ConcurrentHashMap.newKeySet();
        Set<String> wrong = new ConcurrentSkipListSet<>();
        List<DefaultMQPushConsumer> members = new ArrayList<>();
        for (int i = 0; i < 2; i++) {
            DefaultMQPushConsumer member = consumer("ordered");
            member.subscribe(topic("ordered"), "*");
            member.registerMessageListener((MessageListenerOrderly) (found, context) -> {
                for (MessageExt one : found) {
                    String key = one.getTags();
                    if (!busy.add(key)) {
                        wrong.add(key + " consumed twice at a time");
                    }
                    seen.computeIfAbsent(key, any -> new CopyOnWriteArrayList<>()).add(Integer.parseInt(text(one)));
                    busy.remove(key);
                }
                return ConsumeOrderlyStatus.SUCCESS;
            });
            member.start();
            members.add(member);
        }
        // Before: a queue that moves to the new member while messages are in hand is at-least-once.
        until(() -> members.stream().allMatch(one -> Consuming.queues(one) > 0) && members.stream().mapToInt(Consuming::queues).sum() == 4,
            () -> "the queues are not shared");
        List<Integer> wanted = new ArrayList<>();
        for (int i = 0; i < 20; i++) {
            wanted.add(i);
            for (String key : keys) {
                producer.send(new Message(topic("ordered"), key, bytes("" + i)),
                    (queues, message, chosen) -> queues.get(Math.floorMod(chosen.hashCode(), queues.size())), key);
            }
        }
        Map<String, List<Integer>> all = Map.of("red", wanted, "green", wanted, "blue", wanted);
        until(() -> seen.values().stream().mapToInt(List::size).sum() >= 60, () -> "seen " + seen);
        same(new TreeMap<>(seen), new TreeMap<>(all));
        same(wrong, Set.of());
        members.forEach(DefaultMQPushConsumer::shutdown);
    }

    static void delayLevel() throws Exception {
        Message one = message("delay-level", "tag", "late");
        one.setDelayTimeLevel(1);
        long begun = System.currentTimeMillis();
        try (Collector seen = Collector.of("delay-level", "*")) {
            stored(producer.send(one));
            MessageExt got = seen.next();
            long took = System.currentTimeMillis() - begun;
            check(took >= 1000, "after " + took + " ms, not one second");
            same(text(got), "late");
        }
    }

    /**
     * Committed, rolled back, undecided and then committed by the check, and a local transaction that breaks: asked again as well. Who takes
     * long to decide is asked about that, too, and says the same.
     */
    static void transaction() throws Exception {
        Set<String> asked = new ConcurrentSkipListSet<>();
        TransactionMQProducer sender = new TransactionMQProducer(prefix + "-transactions");
        sender.setNamesrvAddr(nameservers);
        sender.setSendMsgTimeout(CALL_MS);
        sender.setMqClientApiTimeout(CALL_MS);
        sender.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object wanted) {
                if (wanted == null) {
                    throw new IllegalStateException("broken on purpose");
                }
                return (LocalTransactionState) wanted;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                asked.add(text(message));
                return Set.of("undone", "no").contains(text(message)) ? LocalTransactionState.ROLLBACK_MESSAGE : LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        sender.start();
        try (Collector seen = Collector.of("transaction", "*")) {
            Patient.routed(() -> sender.sendMessageInTransaction(message("transaction", "tag", "yes"), LocalTransactionState.COMMIT_MESSAGE));
            Patient.routed(() -> sender.sendMessageInTransaction(message("transaction", "tag", "no"), LocalTransactionState.ROLLBACK_MESSAGE));
            Patient.routed(() -> sender.sendMessageInTransaction(message("transaction", "tag", "lost"), LocalTransactionState.UNKNOW));
            Patient.routed(() -> sender.sendMessageInTransaction(message("transaction", "tag", "undone"), LocalTransactionState.UNKNOW));
            Patient.routed(() -> sender.sendMessageInTransaction(message("transaction", "tag", "broken"), null));
            until(() -> asked.containsAll(Set.of("lost", "undone", "broken")), () -> "asked about " + asked);
            seen.exactly(Set.of("yes", "lost", "broken"));
        }
        sender.shutdown();
    }

    /** With a callback: the blocking form of client 5.3.3 gives up as soon as its send is acknowledged (RequestResponseFuture). */
    static void requestReply() throws Exception {
        DefaultMQProducer replier = producer("replier");
        DefaultMQPushConsumer server = consumer("request-reply");
        server.subscribe(topic("request-reply"), "*");
        server.registerMessageListener((MessageListenerConcurrently) (found, context) -> {
            for (MessageExt one : found) {
                try {
                    replier.send(MessageUtil.createReplyMessage(one, bytes("re: " + text(one))), CALL_MS);
                } catch (Exception error) {
                    error.printStackTrace();
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        server.start();
        CountDownLatch all = new CountDownLatch(10);
        Set<String> answers = new ConcurrentSkipListSet<>();
        for (String body : names("q", 10)) {
            producer.request(message("request-reply", "tag", body), new RequestCallback() {
                @Override
                public void onSuccess(Message reply) {
                    answers.add(text(reply));
                    all.countDown();
                }

                @Override
                public void onException(Throwable error) {
                    answers.add(String.valueOf(error));
                    all.countDown();
                }
            }, LIMIT_S * 1000L);
        }
        check(all.await(2 * LIMIT_S, TimeUnit.SECONDS), "replies " + answers);
        same(answers, names("re: q", 10));
        server.shutdown();
        replier.shutdown();
    }

    /** Over 4 KiB the client compresses; the stored record is small, the consumer sees the whole. */
    static void compressed(String scenario) throws Exception {
        compressed(scenario, producer);
    }

    static void compressed(String scenario, DefaultMQProducer sender) throws Exception {
        String body = "temperature 21.5 ".repeat(1000);
        stored(sender.send(new Message(topic(scenario), "tag", bytes(body))));
        try (Collector seen = Collector.of(scenario, "*")) {
            MessageExt one = seen.next();
            same(text(one), body);
            check(one.getStoreSize() < 3000, "stored with " + one.getStoreSize() + " bytes");
        }
    }

    static void query() throws Exception {
        long begun = System.currentTimeMillis() - 60_000;
        SendResult sent = producer.send(new Message(topic("query"), "tag", "blue sky", bytes("found")));
        producer.send(new Message(topic("query"), "tag", "grey", bytes("another")));
        String where = topic("query");
        // The client gives each of its questions a few seconds of its own.
        same(text(again(() -> producer.viewMessage(where, sent.getMsgId()))), "found");
        same(text(again(() -> producer.viewMessage(where, sent.getOffsetMsgId()))), "found");
        for (String key : new String[] {"blue", "sky"}) {
            List<MessageExt> found = again(() -> producer.queryMessage(where, key, 32, begun, System.currentTimeMillis() + 60_000)).getMessageList();
            same(texts(found), List.of("found"));
            same(found.get(0).getMsgId(), sent.getMsgId());
        }
        MessageQueue queue = sent.getMessageQueue();
        same(again(() -> producer.maxOffset(queue)), sent.getQueueOffset() + 1);
        same(again(() -> producer.minOffset(queue)), 0L);
        same(again(() -> producer.searchOffset(queue, begun)), 0L);
        same(again(() -> producer.earliestMsgStoreTime(queue)),
            again(() -> producer.viewMessage(where, sent.getOffsetMsgId())).getStoreTimestamp());
    }
}
