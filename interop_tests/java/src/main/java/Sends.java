import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentSkipListSet;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Arguments: nameserver, name. Sends in every way, consumes in vain, asks and answers; prints one line per thing seen, sorted. */
public final class Sends {
    /** How long anything may take on a machine that does much else. */
    static final int LIMIT_S = 120;
    static final int CALL_MS = Patient.CALL_MS;
    static final Collection<String> SEEN = new ConcurrentSkipListSet<>();
    static String nameserver;
    static String topic;
    static DefaultMQProducer producer;
    static MessageQueue anyQueue;

    public static void main(String[] args) {
        Program.run(Sends::run, args);
    }

    static void run(String[] args) throws Exception {
        nameserver = args[0];
        topic = args[1];
        producer = new Patient(topic + "-producer", nameserver);
        producer.start();
        retries();
        ordered();
        requests();
        batches();
        compressed();
        lightQueues();
        producer.shutdown();
        new TreeSet<>(SEEN).forEach(System.out::println);
    }

    /** A message that is consumed in vain twice: first copy after a second, then dead. */
    static void retries() throws Exception {
        String name = topic + "-retry";
        Message message = new Message(name, "red", "k1", "vain".getBytes(StandardCharsets.UTF_8));
        message.putUserProperty("own", "x");
        SendResult sent = producer.send(message);
        anyQueue = sent.getMessageQueue();
        CountDownLatch twice = new CountDownLatch(2);
        DefaultMQPushConsumer consumer = consumer(name, 1);
        consumer.subscribe(name, "red");
        consumer.registerMessageListener((MessageListenerConcurrently) (found, context) -> {
            context.setDelayLevelWhenNextConsume(1);
            for (MessageExt one : found) {
                see("retry", one, sent.getMsgId());
                twice.countDown();
            }
            return ConsumeConcurrentlyStatus.RECONSUME_LATER;
        });
        consumer.start();
        check(twice.await(LIMIT_S, TimeUnit.SECONDS), "two deliveries");
        dead("retry-dead", name + "-group", sent.getMsgId());
        consumer.shutdown();
    }

    /** The same in order: the client tries again by itself and sends what is dead straight to the retry topic. */
    static void ordered() throws Exception {
        String name = topic + "-ordered";
        SendResult sent = producer.send(new Message(name, "red", "k2", "vain".getBytes(StandardCharsets.UTF_8)));
        CountDownLatch twice = new CountDownLatch(2);
        DefaultMQPushConsumer consumer = consumer(name, 1);
        consumer.subscribe(name, "*");
        consumer.registerMessageListener((MessageListenerOrderly) (found, context) -> {
            context.setSuspendCurrentQueueTimeMillis(100);
            for (MessageExt one : found) {
                see("ordered", one, sent.getMsgId());
                twice.countDown();
            }
            return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
        });
        consumer.start();
        check(twice.await(LIMIT_S, TimeUnit.SECONDS), "two deliveries in order");
        dead("ordered-dead", name + "-group", sent.getMsgId());
        consumer.shutdown();
    }

    static void requests() throws Exception {
        String name = topic + "-requests";
        DefaultMQProducer replier = new Patient(name + "-replier", nameserver);
        replier.setInstanceName("replier");
        replier.start();
        DefaultMQPushConsumer consumer = consumer(name, 16);
        consumer.subscribe(name, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (found, context) -> {
            for (MessageExt one : found) {
                if (one.getProperty("REPLY_TO_CLIENT") == null) {
                    continue;
                }
                try {
                    byte[] answer = ("re: " + new String(one.getBody(), StandardCharsets.UTF_8)).getBytes(StandardCharsets.UTF_8);
                    replier.send(MessageUtil.createReplyMessage(one, answer), CALL_MS);
                } catch (InterruptedException stopped) {
                    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;  // the reply is there, and all is over, before the send returns
                } catch (Exception error) {
                    SEEN.add("reply failed " + error);
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        producer.send(new Message(name, "", "first".getBytes(StandardCharsets.UTF_8)));  // makes the topic
        consumer.start();
        CountDownLatch all = new CountDownLatch(10);
        for (int i = 0; i < 10; i++) {
            Message question = new Message(name, "q", ("question " + i).getBytes(StandardCharsets.UTF_8));
            ask(question, 1, all);
        }
        check(all.await(3 * LIMIT_S, TimeUnit.SECONDS), "ten replies");
        consumer.shutdown();
        replier.shutdown();
    }

    /** What has no answer for long is asked again, once: a broker that did not know the asker yet has sent it nowhere. */
    static void ask(Message question, int attempt, CountDownLatch all) throws Exception {
        producer.request(question, new RequestCallback() {
            @Override
            public void onSuccess(Message reply) {
                SEEN.add("reply " + new String(reply.getBody(), StandardCharsets.UTF_8) + " type " + reply.getProperty("MSG_TYPE"));
                all.countDown();
            }

            @Override
            public void onException(Throwable error) {
                try {
                    if (attempt < 2) {
                        ask(new Message(question.getTopic(), "q", question.getBody()), attempt + 1, all);
                        return;
                    }
                } catch (Exception second) {
                    error.addSuppressed(second);
                }
                SEEN.add("no reply " + error);
                all.countDown();
            }
        }, attempt == 1 ? 20_000 : CALL_MS);
    }

    static void batches() throws Exception {
        String name = topic + "-batch";
        List<Message> batch = new ArrayList<>();
        for (int i = 0; i < 5; i++) {
            batch.add(new Message(name, "t" + i, "k" + i, ("b" + i).getBytes(StandardCharsets.UTF_8)));
        }
        SendResult sent = producer.send(batch);
        check(sent.getOffsetMsgId().split(",").length == 5, "five offset ids");
        for (MessageExt one : pull(sent.getMessageQueue(), 5)) {
            SEEN.add("batch " + new String(one.getBody(), StandardCharsets.UTF_8) + " " + one.getTags() + " " + one.getKeys()
                + " at " + (one.getQueueOffset() - sent.getQueueOffset()));
        }
    }

    /** Bodies over 4 KiB are compressed; which way, only clients from 5.0 on can choose. */
    static void compressed() throws Exception {
        for (String kind : new String[] {"ZLIB", "LZ4", "ZSTD"}) {
            String name = topic + "-" + kind.toLowerCase();
            try {
                Class<?> type = Class.forName("org.apache.rocketmq.common.compression.CompressionType");
                Object value = type.getMethod("of", String.class).invoke(null, kind);
                DefaultMQProducer.class.getMethod("setCompressType", type).invoke(producer, value);
            } catch (ReflectiveOperationException error) {
                if (!kind.equals("ZLIB")) {
                    continue;
                }
            }
            byte[] body = "temperature 21.5 ".repeat(1000).getBytes(StandardCharsets.UTF_8);
            SendResult sent = producer.send(new Message(name, "large", body));
            MessageExt one = pull(sent.getMessageQueue(), 1).get(0);
            SEEN.add("compressed " + kind + " " + java.util.Arrays.equals(one.getBody(), body) + " " + (one.getStoreSize() < 2000));
        }
    }

    static void lightQueues() throws Exception {
        String name = topic + "-light";
        for (int i = 0; i < 4; i++) {
            Message message = new Message(name, "t", ("l" + i).getBytes(StandardCharsets.UTF_8));
            MessageAccessor.putProperty(message, "INNER_MULTI_DISPATCH", i % 2 == 0 ? "%LMQ%" + topic + "A,%LMQ%" + topic + "B" : "%LMQ%" + topic + "B");
            producer.send(message);
        }
        for (String queue : new String[] {"A", "B"}) {
            String light = "%LMQ%" + topic + queue;
            for (MessageExt one : pull(new MessageQueue(light, anyQueue.getBrokerName(), 0), queue.equals("A") ? 2 : 4)) {
                SEEN.add("light " + queue + " " + new String(one.getBody(), StandardCharsets.UTF_8) + " of " + one.getTopic().replace(topic, "")
                    + " offsets " + one.getProperty("INNER_MULTI_QUEUE_OFFSET"));
            }
        }
    }

    static DefaultMQPushConsumer consumer(String name, int attempts) {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(name + "-group");
        consumer.setNamesrvAddr(nameserver);
        consumer.setMqClientApiTimeout(CALL_MS);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setMaxReconsumeTimes(attempts);
        return consumer;
    }

    static void dead(String what, String group, String id) throws Exception {
        MessageQueue queue = new MessageQueue("%DLQ%" + group, anyQueue.getBrokerName(), 0);
        for (MessageExt one : pull(queue, 1)) {
            see(what, one, id);
        }
    }

    static void see(String what, MessageExt one, String id) {
        SEEN.add(what + " " + new String(one.getBody(), StandardCharsets.UTF_8) + " of " + one.getTopic().replace(topic, "")
            + " times " + one.getReconsumeTimes() + " tag " + one.getTags() + " keys " + one.getKeys() + " own " + one.getProperty("own")
            + " retry " + (one.getProperty("RETRY_TOPIC") == null ? null : one.getProperty("RETRY_TOPIC").replace(topic, ""))
            + " delay " + one.getProperty("DELAY") + " wait " + one.getProperty("WAIT")
            + " origin " + (one.getProperty("ORIGIN_MESSAGE_ID") != null) + " id " + id.equals(one.getMsgId()));
    }

    /** The first messages of a queue; waits until there are so many. */
    static List<MessageExt> pull(MessageQueue queue, int count) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("reader-" + Math.abs(queue.hashCode()));
        consumer.setNamesrvAddr(nameserver);
        consumer.setMqClientApiTimeout(CALL_MS);
        consumer.setRegisterTopics(Set.of(topic + "-retry"));  // whose route tells it the broker: light queues have none
        consumer.start();
        List<MessageExt> found = new ArrayList<>();
        long end = System.currentTimeMillis() + LIMIT_S * 1000L;
        while (found.size() < count && System.currentTimeMillis() < end) {
            try {
                PullResult result = consumer.pullBlockIfNotFound(queue, "*", found.size(), count - found.size());
                if (result.getPullStatus() == PullStatus.FOUND) {
                    found.addAll(result.getMsgFoundList());
                }
            } catch (MQBrokerException | MQClientException missing) {
                Thread.sleep(200);  // the dead letter topic comes with its first message, the route a moment later
            }
        }
        consumer.shutdown();
        check(found.size() == count, count + " messages in " + queue + ", not " + found.size());
        return found;
    }

    static void check(boolean good, String what) {
        if (!good) {
            new TreeSet<>(SEEN).forEach(System.out::println);
            throw new IllegalStateException("missing: " + what);
        }
    }
}
