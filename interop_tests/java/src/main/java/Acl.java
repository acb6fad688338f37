import java.nio.charset.StandardCharsets;
import java.util.Collections;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.RPCHook;

/**
 * A user of RocketMQ's ACL. Arguments: nameserver, user, password, topic of his, topic of others, group of his, group of others. Sends and
 * consumes with message trace, tries what he may not, and prints one line for each.
 */
public final class Acl {
    static final int LIMIT_S = 120;

    static String nameserver;

    public static void main(String[] args) {
        Program.run(Acl::run, args);
    }

    static void run(String[] args) throws Exception {
        nameserver = args[0];
        RPCHook hook = new AclClientRPCHook(new SessionCredentials(args[1], args[2]));
        String own = args[3];
        String others = args[4];
        DefaultMQProducer producer = producer("acl-producer", hook, true);
        Set<String> sent = new TreeSet<>();
        for (int i = 0; i < 4; i++) {
            byte[] body = ("body " + i).getBytes(StandardCharsets.UTF_8);
            SendResult result = Patient.routed(() -> producer.send(new Message(own, "tag", "key", body)));
            sent.add(result.getMsgId());
        }
        System.out.println("sent " + sent.size());
        Set<String> seen = Collections.synchronizedSet(new TreeSet<>());
        CountDownLatch all = new CountDownLatch(4);
        DefaultMQPushConsumer consumer =
            new DefaultMQPushConsumer(args[5], hook, new AllocateMessageQueueAveragely(), true, null);
        consumer.setNamesrvAddr(nameserver);
        consumer.setMqClientApiTimeout(Patient.CALL_MS);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(own, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> {
                if (seen.add(message.getMsgId())) {
                    all.countDown();
                }
            });
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        System.out.println("consumed " + all.await(LIMIT_S, TimeUnit.SECONDS) + " " + seen.equals(sent));
        Message foreign = new Message(others, "tag", new byte[1]);
        System.out.println("send to others " + code(() -> producer.send(foreign)));
        MessageQueue queue = Patient.routed(() -> producer.fetchPublishMessageQueues(own)).get(0);
        System.out.println("pull of others' group " + code(() -> pull(args[6], hook, queue)));
        MessageQueue strange = Patient.routed(() -> producer.fetchPublishMessageQueues(others)).get(0);
        System.out.println("pull of others' topic " + code(() -> pull(args[5], hook, strange)));
        RPCHook wrong = new AclClientRPCHook(new SessionCredentials(args[1], "not-" + args[2]));
        DefaultMQProducer guesser = producer("acl-guesser", wrong, false);
        System.out.println("wrong secret " + code(() -> guesser.send(new Message(own, "tag", new byte[1]))));
        DefaultMQProducer nobody = producer("acl-nobody", null, false);
        System.out.println("no signature " + code(() -> nobody.send(new Message(own, "tag", new byte[1]))));
        LockSupport.parkNanos(TimeUnit.SECONDS.toNanos(6)); // traces go out every 5 s at the latest; the client tells nobody when
        consumer.shutdown();
        producer.shutdown();
        guesser.shutdown();
        nobody.shutdown();
        sent.forEach(id -> System.out.println("id " + id));
    }

    static DefaultMQProducer producer(String group, RPCHook hook, boolean traced) throws MQClientException {
        DefaultMQProducer made = new DefaultMQProducer(group, hook, traced, null);
        made.setNamesrvAddr(nameserver);
        made.setSendMsgTimeout(Patient.CALL_MS);
        made.setMqClientApiTimeout(Patient.CALL_MS);
        made.setRetryTimesWhenSendFailed(0);
        made.setInstanceName(group); // one connection for one user
        made.start();
        return made;
    }

    static void pull(String group, RPCHook hook, MessageQueue queue) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(group, hook);
        consumer.setNamesrvAddr(nameserver);
        consumer.setInstanceName("pull-" + group + "-" + queue.getTopic());
        consumer.start();
        try {
            consumer.pull(queue, "*", 0, 1, Patient.CALL_MS);
        } finally {
            consumer.shutdown();
        }
    }

    /** The broker's code for what it refuses; `fine` where it does not. */
    static String code(Action action) throws Exception {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(LIMIT_S);
        while (true) {
            try {
                action.run();
                return "fine";
            } catch (MQBrokerException error) {
                return String.valueOf(error.getResponseCode());
            } catch (MQClientException error) {
                if (!String.valueOf(error.getMessage()).contains("No route info") || System.nanoTime() > end) {
                    return error.getResponseCode() > 0 ? String.valueOf(error.getResponseCode()) : error.getMessage();
                }
            }
        }
    }

    interface Action {
        void run() throws Exception;
    }
}
