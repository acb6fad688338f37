import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.AckCallback;
import org.apache.rocketmq.client.consumer.AckResult;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PopCallback;
import org.apache.rocketmq.client.consumer.PopResult;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.message.MessageQueueAssignment;
import org.apache.rocketmq.common.message.MessageRequestMode;
import org.apache.rocketmq.remoting.protocol.header.AckMessageRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.ChangeInvisibleTimeRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.ExtraInfoUtil;
import org.apache.rocketmq.remoting.protocol.header.PopMessageRequestHeader;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;

/** Arguments: nameserver, broker address, topic, messages of the push consumer. Pops with the official client and prints what it saw. */
public final class Pop {
    /** How long a call may take on a machine that does much else. */
    private static final int CALL_MS = Patient.CALL_MS;
    private static final int LIMIT_MS = 120_000;
    /** Long enough that two more requests come before it ends. */
    private static final int ORDERED_MS = 10_000;
    private static MQClientAPIImpl api;
    private static String broker;
    private static String topic;

    public static void main(String[] args) throws Exception {
        broker = args[1];
        topic = args[2];
        int count = Integer.parseInt(args[3]);
        DefaultMQProducer producer = new Patient("pop_producer", args[0]);
        producer.start();
        api = producer.getDefaultMQProducerImpl().getMqClientFactory().getMQClientAPIImpl();
        producer.createTopic("TBW102", topic, 2, Map.of());
        producer.createTopic("TBW102", topic + "_push", 4, Map.of());
        String name = route(producer, topic);
        requests(producer, name);
        push(args[0], producer, count);
        producer.shutdown();
        System.exit(0);
    }

    private static String route(DefaultMQProducer producer, String name) throws Exception {
        for (int i = 0; i < 600; i++) {
            try {
                return producer.fetchPublishMessageQueues(name).get(0).getBrokerName();
            } catch (Exception error) {
                Thread.sleep(200);
            }
        }
        throw new IllegalStateException("no route");
    }

    private static void requests(DefaultMQProducer producer, String name) throws Exception {
        for (int i = 0; i < 6; i++) {
            producer.send(new Message(topic, i % 2 == 0 ? "even" : "odd", "k" + i, bytes("m" + i)), new MessageQueue(topic, name, 0));
        }
        show("any", pop("g1", 0, 2, 60_000, 0, false, null, "*"), true);
        PopResult rest = pop("g1", 0, 32, 60_000, 0, false, null, "*");
        show("rest", rest, true);
        show("empty", pop("g1", 0, 32, 60_000, 0, false, null, "*"), true);
        for (MessageExt one : rest.getMsgFoundList()) {
            System.out.println("ack " + new String(one.getBody(), StandardCharsets.UTF_8) + " " + ack("g1", one));
        }
        show("tags", pop("g2", 0, 32, 60_000, 0, false, null, "even"), true);

        PopResult first = pop("g3", 0, 2, 60_000, 0, false, null, "*");
        MessageExt again = first.getMsgFoundList().get(0);
        String old = again.getProperty("POP_CK");
        System.out.println("change " + change("g3", again, 1_000));
        MessageExt back = null;
        int other = 0;
        for (int i = 0; i < 60 && (back == null || other < 4); i++) { // the four that were never popped, and that one when its second is over
            PopResult found = pop("g3", 0, 1, 60_000, 2_000, false, null, "*");
            for (MessageExt one : found.getMsgFoundList() == null ? List.<MessageExt>of() : found.getMsgFoundList()) {
                if (one.getMsgId().equals(again.getMsgId())) {
                    back = one;
                } else {
                    other++;
                }
            }
        }
        System.out.println("back " + body(back) + " times " + back.getReconsumeTimes() + " others " + other + " topic " + back.getTopic().equals(topic));
        System.out.println("stale ack " + ackWith("g3", again, old));
        System.out.println("new ack " + ack("g3", back));

        PopResult ordered = pop("g4", 0, 2, ORDERED_MS, 0, true, "a1", "*");
        show("ordered", ordered, true);
        show("blocked", pop("g4", 0, 2, ORDERED_MS, 0, true, "a2", "*"), true);
        show("same attempt", pop("g4", 0, 2, ORDERED_MS, 0, true, "a1", "*"), true);
        PopResult later;
        long end = System.currentTimeMillis() + LIMIT_MS;
        do {
            Thread.sleep(200);
            later = pop("g4", 0, 2, ORDERED_MS, 0, true, "a3", "*");
        } while (later.getMsgFoundList() == null && System.currentTimeMillis() < end);
        show("ordered again", later, true);
        for (MessageExt one : later.getMsgFoundList()) {
            ack("g4", one);
        }
        show("ordered next", pop("g4", 0, 2, ORDERED_MS, 0, true, "a4", "*"), true);

        CompletableFuture<PopResult> waiting = popAsync("g5", 1, 32, 60_000, 30_000, false, null, "*");
        Thread.sleep(500);
        System.out.println("waits " + !waiting.isDone());
        producer.send(new Message(topic, "late", "late", bytes("late")), new MessageQueue(topic, name, 1));
        show("woken", waiting.get(CALL_MS, TimeUnit.MILLISECONDS), false);
    }

    private static void push(String nameserver, DefaultMQProducer producer, int count) throws Exception {
        String pushTopic = topic + "_push";
        String group = "pop_push_group";
        Map<String, Integer> seen = new ConcurrentHashMap<>();
        TreeSet<String> failed = new TreeSet<>();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(nameserver);
        consumer.setMqClientApiTimeout(CALL_MS);
        consumer.subscribe(pushTopic, "*");
        consumer.setClientRebalance(false);
        consumer.registerMessageListener((MessageListenerConcurrently) (found, context) -> {
            for (MessageExt one : found) {
                String body = body(one);
                synchronized (failed) {
                    if (body.equals("p3") && failed.add(body)) {
                        return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                    }
                }
                seen.merge(body, 1, Integer::sum);
                if (body.equals("p3")) {
                    System.out.println("failed one again, times " + one.getReconsumeTimes());
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        for (int i = 0; i < 50; i++) {
            try {
                api.setMessageRequestMode(broker, pushTopic, group, MessageRequestMode.POP, 0, CALL_MS);
                break;
            } catch (Exception error) {
                Thread.sleep(200);
            }
        }
        consumer.start();
        for (int i = 0; i < count; i++) {
            producer.send(new Message(pushTopic, "t", "k" + i, bytes("p" + i)));
        }
        long end = System.currentTimeMillis() + LIMIT_MS;
        while (seen.size() < count && System.currentTimeMillis() < end) {
            Thread.sleep(100);
        }
        TreeSet<String> assigned = new TreeSet<>();
        for (MessageQueueAssignment one : api.queryAssignment(broker, pushTopic, group,
                consumer.getDefaultMQPushConsumerImpl().getmQClientFactory().getClientId(), "AVG", MessageModel.CLUSTERING, CALL_MS)) {
            assigned.add(one.getMode() + " " + one.getMessageQueue().getQueueId());
        }
        System.out.println("assigned " + assigned);
        Thread.sleep(500);
        consumer.shutdown();
        int twice = 0;
        for (int times : seen.values()) {
            twice += times > 1 ? 1 : 0;
        }
        System.out.println("pushed " + seen.size() + " repeated " + twice);
    }

    private static CompletableFuture<PopResult> popAsync(String group, int queue, int count, long invisible, long poll, boolean order,
            String attempt, String tags) throws Exception {
        PopMessageRequestHeader header = new PopMessageRequestHeader();
        header.setConsumerGroup(group);
        header.setTopic(topic);
        header.setQueueId(queue);
        header.setMaxMsgNums(count);
        header.setInvisibleTime(invisible);
        header.setPollTime(poll);
        header.setBornTime(System.currentTimeMillis());
        header.setInitMode(0);
        header.setExpType("TAG");
        header.setExp(tags);
        header.setOrder(order);
        header.setAttemptId(attempt);
        CompletableFuture<PopResult> done = new CompletableFuture<>();
        api.popMessageAsync("broker-a", broker, header, poll + CALL_MS, new PopCallback() {
            @Override
            public void onSuccess(PopResult result) {
                done.complete(result);
            }

            @Override
            public void onException(Throwable error) {
                done.completeExceptionally(error);
            }
        });
        return done;
    }

    private static PopResult pop(String group, int queue, int count, long invisible, long poll, boolean order, String attempt, String tags)
            throws Exception {
        return popAsync(group, queue, count, invisible, poll, order, attempt, tags).get(LIMIT_MS, TimeUnit.MILLISECONDS);
    }

    private static String ack(String group, MessageExt one) throws Exception {
        return ackWith(group, one, one.getProperty("POP_CK"));
    }

    private static String ackWith(String group, MessageExt one, String receipt) throws Exception {
        String[] parts = ExtraInfoUtil.split(receipt);
        AckMessageRequestHeader header = new AckMessageRequestHeader();
        header.setConsumerGroup(group);
        header.setTopic(ExtraInfoUtil.getRealTopic(parts, topic, group));
        header.setQueueId(ExtraInfoUtil.getQueueId(parts));
        header.setOffset(ExtraInfoUtil.getQueueOffset(parts));
        header.setExtraInfo(receipt);
        CompletableFuture<String> done = new CompletableFuture<>();
        api.ackMessageAsync(broker, CALL_MS, answer(done), header);
        return done.get(CALL_MS, TimeUnit.MILLISECONDS);
    }

    private static String change(String group, MessageExt one, long invisible) throws Exception {
        String receipt = one.getProperty("POP_CK");
        String[] parts = ExtraInfoUtil.split(receipt);
        ChangeInvisibleTimeRequestHeader header = new ChangeInvisibleTimeRequestHeader();
        header.setConsumerGroup(group);
        header.setTopic(ExtraInfoUtil.getRealTopic(parts, topic, group));
        header.setQueueId(ExtraInfoUtil.getQueueId(parts));
        header.setOffset(ExtraInfoUtil.getQueueOffset(parts));
        header.setExtraInfo(receipt);
        header.setInvisibleTime(invisible);
        CompletableFuture<String> done = new CompletableFuture<>();
        api.changeInvisibleTimeAsync("broker-a", broker, header, CALL_MS, answer(done));
        return done.get(CALL_MS, TimeUnit.MILLISECONDS);
    }

    private static AckCallback answer(CompletableFuture<String> done) {
        return new AckCallback() {
            @Override
            public void onSuccess(AckResult result) {
                done.complete(String.valueOf(result.getStatus()));
            }

            @Override
            public void onException(Throwable error) {
                done.complete(error.getClass().getSimpleName());
            }
        };
    }

    private static void show(String what, PopResult result, boolean rest) {
        List<String> found = new ArrayList<>();
        Map<String, Integer> marks = new TreeMap<>();
        for (MessageExt one : result.getMsgFoundList() == null ? List.<MessageExt>of() : result.getMsgFoundList()) {
            String[] receipt = ExtraInfoUtil.split(one.getProperty("POP_CK"));
            found.add(body(one) + "/" + one.getReconsumeTimes() + "/" + one.getQueueOffset() + "/" + receipt[0] + "/" + receipt[2] + "/"
                + (ExtraInfoUtil.isOrder(receipt) ? "order" : "any") + "/" + receipt[4] + receipt[5] + receipt[6] + receipt[7]);
        }
        System.out.println(what + " " + result.getPopStatus() + " " + found + (rest ? " rest " + result.getRestNum() : "") + marks.keySet());
    }

    private static String body(MessageExt one) {
        return one == null ? "none" : new String(one.getBody(), StandardCharsets.UTF_8);
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }
}
