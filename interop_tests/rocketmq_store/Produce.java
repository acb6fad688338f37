// Sends one of everything that a RocketMQ client can send, for a store that others shall be able to read.
// java -cp CLASSPATH Produce.java NAMESERVER STAGE   (stages: all, more, back; prints "done STAGE")

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

public class Produce {
    static String nameserver;

    static Message message(String topic, String tag, String keys, String body) {
        return new Message(topic, tag, keys, body.getBytes(StandardCharsets.UTF_8));
    }

    static DefaultMQProducer producer(DefaultMQProducer made) throws Exception {
        made.setNamesrvAddr(nameserver);
        made.setMqClientApiTimeout(60000);
        made.setVipChannelEnabled(false);
        made.setSendMsgTimeout(60000);
        made.start();
        return made;
    }

    static MessageQueue queue(DefaultMQProducer producer, String topic, int id) throws Exception {
        for (MessageQueue queue : producer.fetchPublishMessageQueues(topic)) {
            if (queue.getQueueId() == id) {
                return queue;
            }
        }
        throw new IllegalStateException("no queue " + id + " of " + topic);
    }

    static void plain(DefaultMQProducer producer, String prefix, int count) throws Exception {
        MessageQueue[] queues = {queue(producer, "Plain", 0), queue(producer, "Plain", 1)};
        String filler = "0123456789abcdef".repeat(128);
        for (int number = 0; number < count; number++) {
            String tag = number % 3 == 0 ? "A" : number % 3 == 1 ? "B" : "größe";
            String body = prefix + number + ":" + filler.substring(0, number * 37 % 1800);
            Message message = message("Plain", tag, prefix + number + " shared" + number % 5, body);
            message.putUserProperty("colour", number % 2 == 0 ? "red" : "blue");
            producer.send(message, queues[number % 2]);
        }
        producer.send(new Message("Plain", "no tag, no keys".getBytes(StandardCharsets.UTF_8)), queues[0]);
    }

    static void special(DefaultMQProducer producer) throws Exception {
        List<Message> batch = new ArrayList<>();
        for (int number = 0; number < 5; number++) {
            batch.add(message("Plain", "batch", "batch" + number, "batch " + number));
        }
        producer.send(batch, queue(producer, "Plain", 1));
        producer.send(message("Big", "zlib", "big", "many words ".repeat(1000)));
        Message soon = message("Delayed", "level1", "soon", "after a second");
        soon.setDelayTimeLevel(1);
        producer.send(soon);
        Message later = message("Delayed", "level18", "later", "after two hours");
        later.setDelayTimeLevel(18);
        producer.send(later);
        Message timer = message("Delayed", "timer", "timer", "after two seconds");
        timer.setDelayTimeMs(2000);
        producer.send(timer);
        for (int number = 0; number < 4; number++) {
            Message many = message("Light", "t", "light" + number, "for several light queues " + number);
            many.putUserProperty("INNER_MULTI_DISPATCH", number % 2 == 0 ? "%LMQ%alpha,%LMQ%beta" : "%LMQ%alpha");
            producer.send(many);
        }
        for (int number = 0; number < 3; number++) {
            producer.send(message("Gone", "t", "gone" + number, "its topic will be deleted"));
        }
    }

    static void transactions() throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer("deciders");
        producer.setTransactionListener(new TransactionListener() {
            public LocalTransactionState executeLocalTransaction(Message message, Object wanted) {
                return (LocalTransactionState) wanted;
            }

            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return LocalTransactionState.UNKNOW;
            }
        });
        producer(producer);
        for (LocalTransactionState state : LocalTransactionState.values()) {
            producer.sendMessageInTransaction(message("Decided", "t", state.name(), "transaction " + state), state);
        }
        producer.shutdown();
    }

    // Reads half of each queue of Plain, commits, and sends one message back (retry topic with a long name: record V2).
    static void consume(String group, int upTo) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(group);
        consumer.setNamesrvAddr(nameserver);
        consumer.setMqClientApiTimeout(60000);
        consumer.setVipChannelEnabled(false);
        consumer.setRegisterTopics(new HashSet<>(Arrays.asList("Plain")));
        consumer.start();
        Set<MessageQueue> queues = consumer.fetchSubscribeMessageQueues("Plain");
        MessageExt last = null;
        for (MessageQueue queue : queues) {
            long offset = 0;
            while (offset < upTo) {
                PullResult result = consumer.pull(queue, "*", offset, 8, 10000);
                if (result.getMsgFoundList() == null) {
                    break;
                }
                last = result.getMsgFoundList().get(0);
                offset = result.getNextBeginOffset();
            }
            consumer.updateConsumeOffset(queue, upTo);
            consumer.getOffsetStore().persist(queue);
        }
        if (group.length() > 100) {
            consumer.getDefaultMQPullConsumerImpl().sendMessageBack(last, 1, "broker-a", group);
        }
        consumer.shutdown();
    }

    public static void main(String[] arguments) {
        Program.run(Produce::run, arguments);
    }

    static void run(String[] arguments) throws Exception {
        nameserver = arguments[0];
        String stage = arguments[1];
        DefaultMQProducer producer = producer(new DefaultMQProducer("makers"));
        if (stage.equals("all")) {
            plain(producer, "one", 100);
            special(producer);
            transactions();
            consume("readers", 17);
            consume("long" + "-group-name".repeat(12), 5);
        } else {
            plain(producer, stage, 30);
        }
        producer.shutdown();
        System.out.println("done " + stage);
    }
}
