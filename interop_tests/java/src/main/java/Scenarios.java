import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Scenarios of the official client, several at a time in one JVM. Arguments: nameservers, broker address, prefix of all names, parallel.
 * Prints `RESULT scenario ok` or `RESULT scenario failed: reason`; `DO what` asks whoever started it to do something (kill a process), and
 * a line on standard input says that it is done. What an older client cannot do is in Scenarios5.
 */
public class Scenarios {
    /** How long anything may take on a machine that does much else: half a second is usual, a few for what waits for a rebalance. */
    static final int LIMIT_S = 120;
    static final int CALL_MS = Patient.CALL_MS;

    /** One scenario. */
    interface Scenario {
        void run() throws Exception;
    }

    static final Map<String, Scenario> TOGETHER = new LinkedHashMap<>();
    static final Map<String, Scenario> ALONE = new LinkedHashMap<>();
    static final BufferedReader IN = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    static String nameservers;
    static String broker;
    static String prefix;
    static DefaultMQProducer producer;

    public static void main(String[] args) throws Exception {
        nameservers = args[0];
        broker = args[1];
        prefix = args[2];
        producer = producer("producer");
        Consuming.register();
        Sending.register();
        Faults.register();
        try {
            Class.forName("Scenarios5").getMethod("register").invoke(null);
        } catch (ClassNotFoundException older) {
            say("WITHOUT what 5.x brought");
        }
        ExecutorService pool = Executors.newFixedThreadPool(Integer.parseInt(args[3]));
        List<Callable<Void>> all = new ArrayList<>();
        TOGETHER.forEach((name, scenario) -> all.add(() -> one(name, scenario)));
        pool.invokeAll(all);
        for (Map.Entry<String, Scenario> each : ALONE.entrySet()) {
            one(each.getKey(), each.getValue());
        }
        say("END");
        System.exit(0);
    }

    static Void one(String name, Scenario scenario) {
        long begun = System.currentTimeMillis();
        String result = "ok";
        try {
            scenario.run();
        } catch (Throwable error) {
            error.printStackTrace();
            result = "failed: " + error;
        }
        say("RESULT " + name + " " + result.replace('\n', ' '));
        say("TOOK " + name + " " + (System.currentTimeMillis() - begun) + " ms");
        return null;
    }

    static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    /** Have something done outside, and wait until it is. */
    static void outside(String what) throws Exception {
        say("DO " + what);
        IN.readLine();
    }

    static String topic(String scenario) {
        return prefix + "-" + scenario;
    }

    static DefaultMQProducer producer(String name) throws Exception {
        DefaultMQProducer made = new Patient(prefix + "-" + name, nameservers);
        made.setPollNameServerInterval(1000);
        made.start();
        return made;
    }

    static DefaultMQPushConsumer consumer(String group) {
        DefaultMQPushConsumer made = new DefaultMQPushConsumer(prefix + "-" + group);
        made.setNamesrvAddr(nameservers);
        made.setPollNameServerInterval(1000);
        made.setPersistConsumerOffsetInterval(1000);
        made.setMqClientApiTimeout(CALL_MS);
        made.setConsumeThreadMin(2);
        made.setConsumeThreadMax(2);
        made.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        return made;
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static String text(Message one) {
        return new String(one.getBody(), StandardCharsets.UTF_8);
    }

    static Message message(String scenario, String tag, String body) {
        return new Message(topic(scenario), tag, "key-" + body, bytes(body));
    }

    static Set<String> names(String start, int count) {
        Set<String> made = new TreeSet<>();
        for (int i = 0; i < count; i++) {
            made.add(start + i);
        }
        return made;
    }

    static void stored(SendResult result) {
        check(result.getSendStatus() == SendStatus.SEND_OK, "status " + result.getSendStatus());
    }

    static void check(boolean good, String what) {
        if (!good) {
            throw new IllegalStateException(what);
        }
    }

    static void same(Object seen, Object wanted) {
        check(wanted.equals(seen), "seen " + seen + ", not " + wanted);
    }

    static void until(BooleanSupplier condition, java.util.function.Supplier<String> what) throws Exception {
        long end = System.currentTimeMillis() + LIMIT_S * 1000L;
        while (!condition.getAsBoolean()) {
            check(System.currentTimeMillis() < end, "not within " + LIMIT_S + " s: " + what.get());
            Thread.sleep(20);
        }
    }

    /** A push consumer that notes what it gets. */
    static final class Collector implements AutoCloseable {
        final DefaultMQPushConsumer consumer;
        final BlockingQueue<MessageExt> got = new LinkedBlockingQueue<>();

        Collector(DefaultMQPushConsumer consumer) {
            this.consumer = consumer;
            consumer.registerMessageListener((MessageListenerConcurrently) (found, context) -> {
                got.addAll(found);
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }

        static Collector of(String scenario, String tags) throws Exception {
            Collector made = new Collector(consumer(scenario));
            made.consumer.subscribe(topic(scenario), tags);
            made.consumer.start();
            return made;
        }

        static Collector sql(String scenario, String condition) throws Exception {
            Collector made = new Collector(consumer(scenario));
            made.consumer.subscribe(topic(scenario), MessageSelector.bySql(condition));
            made.consumer.start();
            return made;
        }

        MessageExt next() throws Exception {
            MessageExt one = got.poll(LIMIT_S, TimeUnit.SECONDS);
            check(one != null, "no message within " + LIMIT_S + " s");
            return one;
        }

        Map<String, Integer> counts() {
            Map<String, Integer> counted = new TreeMap<>();
            got.forEach(one -> counted.merge(text(one), 1, Integer::sum));
            return counted;
        }

        /** Exactly these bodies, each once. */
        Collection<MessageExt> exactly(Set<String> wanted) throws Exception {
            until(() -> counts().keySet().containsAll(wanted), () -> "seen " + counts().keySet());
            Map<String, Integer> once = new HashMap<>();
            wanted.forEach(each -> once.put(each, 1));
            same(counts(), new TreeMap<>(once));
            return got;
        }

        @Override
        public void close() {
            consumer.shutdown();
        }
    }

    static List<String> texts(Collection<MessageExt> found) {
        List<String> made = new ArrayList<>();
        found.forEach(one -> made.add(text(one)));
        Collections.sort(made);
        return made;
    }

    /** Send until it works: a server may be on its way back. */
    static SendResult stubborn(DefaultMQProducer sender, Message message) throws Exception {
        return again(() -> sender.send(message));
    }

    static <T> T again(Callable<T> action) throws Exception {
        long end = System.currentTimeMillis() + LIMIT_S * 1000L;
        while (true) {
            try {
                return action.call();
            } catch (Exception away) {
                if (System.currentTimeMillis() > end) {
                    throw away;
                }
                Thread.sleep(50);
            }
        }
    }
}
