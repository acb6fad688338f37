import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Arguments: nameserver, topic, count. Sends, reads with a pull and with a push consumer, and prints what it saw. */
public final class Talk {
    public static void main(String[] args) throws Exception {
        String nameserver = args[0];
        String topic = args[1];
        int count = Integer.parseInt(args[2]);
        DefaultMQProducer producer = new Patient("java_producer", nameserver);
        producer.start();
        producer.createTopic("TBW102", topic, 4, Map.of());
        for (int i = 0; i < count; i++) {
            check(producer.send(message(topic, i)).getSendStatus() == SendStatus.SEND_OK, "send " + i);
        }
        List<Message> batch = new ArrayList<>();
        for (int i = count; i < 2 * count; i++) {
            batch.add(message(topic, i));
        }
        check(producer.send(batch).getSendStatus() == SendStatus.SEND_OK, "batch");
        Message large = new Message(topic, "large", "klarge", new byte[100_000]);
        check(producer.send(large).getSendStatus() == SendStatus.SEND_OK, "compressed");

        Map<String, String> pulled = new TreeMap<>();
        DefaultLitePullConsumer pull = new DefaultLitePullConsumer("java_pull");
        pull.setNamesrvAddr(nameserver);
        pull.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        pull.subscribe(topic, "*");
        pull.start();
        long end = System.currentTimeMillis() + 120_000;
        while (pulled.size() < 2 * count + 1 && System.currentTimeMillis() < end) {
            for (MessageExt found : pull.poll(1000)) {
                note(pulled, found);
            }
        }
        pull.commit();
        pull.shutdown();
        System.out.println("pulled " + pulled.size());

        Map<String, String> pushed = new ConcurrentHashMap<>();
        CountDownLatch even = new CountDownLatch(count);
        DefaultMQPushConsumer push = new DefaultMQPushConsumer("java_push");
        push.setNamesrvAddr(nameserver);
        push.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        push.subscribe(topic, MessageSelector.byTag("even"));
        push.registerMessageListener((MessageListenerConcurrently) (found, context) -> {
            for (MessageExt one : found) {
                if (note(pushed, one)) {
                    even.countDown();
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        push.start();
        even.await(120, TimeUnit.SECONDS);
        push.shutdown();
        System.out.println("pushed " + pushed.size());
        producer.shutdown();
        pulled.forEach((body, facts) -> System.out.println("pull " + body + " " + facts));
        new TreeMap<>(pushed).forEach((body, facts) -> System.out.println("push " + body + " " + facts));
        System.exit(0);
    }

    private static Message message(String topic, int i) {
        Message message = new Message(topic, i % 2 == 0 ? "even" : "odd", "k" + i, ("m" + i).getBytes(StandardCharsets.UTF_8));
        message.putUserProperty("device", "d" + i);
        return message;
    }

    private static boolean note(Map<String, String> seen, MessageExt found) {
        byte[] bytes = found.getBody();
        String body = bytes.length > 1000 ? "large" + bytes.length : new String(bytes, StandardCharsets.UTF_8);
        return seen.put(body, found.getTags() + " " + found.getKeys() + " " + found.getUserProperty("device")) == null;
    }

    private static void check(boolean fine, String what) {
        if (!fine) {
            throw new IllegalStateException(what);
        }
    }
}
