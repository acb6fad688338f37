import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Runs mqadmin commands in one JVM, one after the other: a request is a count and that many strings, the answer is what the command
 * printed. Words that begin with `!` are clients that the commands look at. Each command gets a thread of its own and a limit in time.
 */
public class Driver extends MQAdminStartup {
    private static final Map<String, DefaultMQPushConsumer> CONSUMERS = new HashMap<>();
    private static final Map<String, DefaultMQProducer> PRODUCERS = new HashMap<>();

    public static void main(String[] args) {
        try {
            serve();
        } catch (Exception error) {
            error.printStackTrace();
            System.exit(1);
        }
    }

    private static void serve() throws Exception {
        PrintStream real = System.out;
        DataInputStream in = new DataInputStream(System.in);
        DataOutputStream out = new DataOutputStream(real);
        while (true) {
            int count = in.readInt();
            if (count == 0) {
                System.exit(0);
            }
            int limitMs = in.readInt();
            String[] words = new String[count];
            for (int i = 0; i < count; i++) {
                byte[] data = new byte[in.readInt()];
                in.readFully(data);
                words[i] = new String(data, StandardCharsets.UTF_8);
            }
            byte[] printed = run(words, limitMs).getBytes(StandardCharsets.UTF_8);
            out.writeInt(printed.length);
            out.write(printed);
            out.flush();
        }
    }

    private static String run(String[] words, int limitMs) throws Exception {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        PrintStream captured = new PrintStream(bytes, true, "UTF-8");
        System.setOut(captured);
        System.setErr(captured);
        Thread thread = new Thread(() -> {
            try {
                if (words[0].startsWith("!")) {
                    client(words);
                } else {
                    SUB_COMMANDS.clear();
                    main0(words, null);
                }
            } catch (Throwable error) {
                error.printStackTrace();
            }
        }, "command");
        thread.setDaemon(true);
        thread.start();
        thread.join(limitMs);
        boolean late = thread.isAlive();
        if (late) {
            thread.interrupt();
            thread.join(15000);
        }
        captured.flush();
        return bytes.toString("UTF-8") + (late ? "\n[stopped after " + limitMs + " ms]\n" : "");
    }

    private static void client(String[] words) throws Exception {
        switch (words[0]) {
            case "!commands":
                SUB_COMMANDS.clear();
                initCommand();
                SUB_COMMANDS.forEach(command -> System.out.println(command.commandName()));
                break;
            case "!send": { // nameserver group topic tag key queue bodies... ; group and nameserver name a producer that stays
                DefaultMQProducer producer = producer(words[1], words[2]);
                for (int i = 7; i < words.length; i++) {
                    Message message = new Message(words[3], words[4], words[5], words[i].getBytes(StandardCharsets.UTF_8));
                    MessageQueue queue = null;
                    for (MessageQueue each : producer.fetchPublishMessageQueues(words[3])) {
                        queue = each.getQueueId() == Integer.parseInt(words[6]) ? each : queue;
                    }
                    SendResult result = producer.send(message, queue);
                    System.out.println(result.getMsgId() + " " + result.getOffsetMsgId() + " "
                        + result.getMessageQueue().getQueueId() + " " + result.getQueueOffset());
                }
                break;
            }
            case "!consume": { // nameserver group topic tags
                DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(words[2]);
                consumer.setNamesrvAddr(words[1]);
                consumer.setMqClientApiTimeout(60_000);
                consumer.setInstanceName("consumer-" + words[1].replace(':', '-') + "-" + words[2]);
                consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
                consumer.setPersistConsumerOffsetInterval(500);
                consumer.subscribe(words[3], words[4]);
                consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> ConsumeConcurrentlyStatus.CONSUME_SUCCESS);
                consumer.start();
                CONSUMERS.put(words[1] + words[2], consumer);
                break;
            }
            case "!close":
                for (String key : new ArrayList<>(CONSUMERS.keySet())) {
                    if (key.startsWith(words[1])) {
                        CONSUMERS.remove(key).shutdown();
                    }
                }
                for (String key : new ArrayList<>(PRODUCERS.keySet())) {
                    if (key.startsWith(words[1])) {
                        PRODUCERS.remove(key).shutdown();
                    }
                }
                break;
            default:
                List<String> all = Arrays.asList(words);
                throw new IllegalArgumentException(all.toString());
        }
    }

    private static DefaultMQProducer producer(String nameserver, String group) throws Exception {
        DefaultMQProducer producer = PRODUCERS.get(nameserver + group);
        if (producer == null) {
            producer = new DefaultMQProducer(group, null, group.endsWith("Traced"), null);
            producer.setNamesrvAddr(nameserver);
            producer.setMqClientApiTimeout(60_000);
            producer.setSendMsgTimeout(60_000);
            producer.setInstanceName("producer-" + nameserver.replace(':', '-') + "-" + group);
            producer.start();
            PRODUCERS.put(nameserver + group, producer);
        }
        return producer;
    }
}
