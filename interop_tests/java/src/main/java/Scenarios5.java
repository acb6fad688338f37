import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.compression.CompressionType;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageRequestMode;

/** What only clients of the 5.x line can do. */
public final class Scenarios5 extends Scenarios {
    /** Called by name: an older client's program is compiled without this class. */
    public static void register() {
        TOGETHER.put("pop", Scenarios5::pop);
        TOGETHER.put("timer", Scenarios5::timer);
        TOGETHER.put("recall", Scenarios5::recall);
        for (CompressionType type : new CompressionType[] {CompressionType.LZ4, CompressionType.ZSTD}) {
            String scenario = "compressed-" + type.name().toLowerCase();
            TOGETHER.put(scenario, () -> {
                DefaultMQProducer sender = producer(scenario);
                sender.setCompressType(type);
                Sending.compressed(scenario, sender);
                sender.shutdown();
            });
        }
    }

    static void timer() throws Exception {
        try (Collector seen = Collector.of("timer", "*")) {
            long at = System.currentTimeMillis() + 2500;
            Message one = message("timer", "tag", "at");
            one.setDeliverTimeMs(at);
            stored(producer.send(one));
            same(text(seen.next()), "at");
            long late = System.currentTimeMillis() - at;
            check(late >= 0, late + " ms late");
        }
    }

    /** A machine that is too slow for the first delay gets a longer one. */
    static void recall() throws Exception {
        try (Collector seen = Collector.of("recall", "*")) {
            for (int delay : new int[] {4_000, 20_000, 60_000}) {
                long at = System.currentTimeMillis() + delay;
                Message back = message("recall", "tag", "taken-back-" + delay);
                back.setDeliverTimeMs(at);
                SendResult sent = producer.send(back);
                Message stays = message("recall", "tag", "stays-" + delay);
                stays.setDeliverTimeMs(at + 1000);
                producer.send(stays);
                boolean recalled = false;
                try {
                    same(producer.recallMessage(topic("recall"), sent.getRecallHandle()), sent.getMsgId());
                    recalled = System.currentTimeMillis() < at;
                } catch (MQBrokerException refused) {
                    check(System.currentTimeMillis() >= at, "in time, and " + refused);
                }
                until(() -> seen.counts().containsKey("stays-" + delay), () -> "seen " + seen.counts());
                if (recalled) {
                    check(!seen.counts().containsKey("taken-back-" + delay), "recalled, and came");
                    return;
                }
            }
            check(false, "never in time");
        }
    }

    /** A push consumer whose queues the broker assigns, and which pops them. */
    static void pop() throws Exception {
        producer.getDefaultMQProducerImpl().getMqClientFactory().getMQClientAPIImpl()
            .setMessageRequestMode(broker, topic("pop"), prefix + "-pop", MessageRequestMode.POP, 0, CALL_MS);
        DefaultMQPushConsumer consumer = consumer("pop");
        consumer.setClientRebalance(false);
        Collector seen = new Collector(consumer);
        consumer.subscribe(topic("pop"), "*");
        consumer.start();
        Consuming.send("pop", names("p", 20));
        seen.exactly(names("p", 20));
        for (MessageExt one : seen.got) {
            check(one.getProperty("POP_CK") != null, "pulled, not popped");
        }
        seen.close();
    }
}
