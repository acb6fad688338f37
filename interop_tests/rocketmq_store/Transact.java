// A transactional producer that does as it is told. java -cp CLASSPATH Transact.java NAMESERVER GROUP ANSWER [TOPIC KEY STATE]...
// Sends one message per triple; STATE is what the local transaction says: COMMIT, ROLLBACK, UNKNOWN, or HALT (the process is gone
// before it says anything). Checks are answered with ANSWER (COMMIT, ROLLBACK, UNKNOWN). Prints "sent KEY", "checked KEY", "ready", and
// "slow KEY" where it took so long that the broker may have asked before it was told; ends when its standard input does.

import java.nio.charset.StandardCharsets;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

public class Transact {
    /** Half the time after which the brokers of the tests ask. */
    static final long SLOW_NS = 2_000_000_000L;

    static LocalTransactionState state(String text) {
        switch (text) {
            case "COMMIT":
                return LocalTransactionState.COMMIT_MESSAGE;
            case "ROLLBACK":
                return LocalTransactionState.ROLLBACK_MESSAGE;
            default:
                return LocalTransactionState.UNKNOW;
        }
    }

    public static void main(String[] arguments) {
        Program.run(Transact::run, arguments);
    }

    static void say(String text) {
        System.out.println(text);
        System.out.flush();
    }

    static void run(String[] arguments) throws Exception {
        Set<String> deciding = ConcurrentHashMap.newKeySet();
        TransactionMQProducer producer = new TransactionMQProducer(arguments[1]);
        producer.setNamesrvAddr(arguments[0]);
        producer.setMqClientApiTimeout(60000);
        producer.setVipChannelEnabled(false);
        producer.setSendMsgTimeout(60000);
        producer.setHeartbeatBrokerInterval(500);
        producer.setPollNameServerInterval(500);
        producer.setTransactionListener(new TransactionListener() {
            public LocalTransactionState executeLocalTransaction(Message message, Object wanted) {
                if (wanted.equals("HALT")) {
                    say("sent " + message.getKeys());
                    Runtime.getRuntime().halt(9);
                }
                return state((String) wanted);
            }

            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                if (deciding.contains(message.getKeys())) { // a slow machine: asked before the first word is out
                    say("early " + message.getKeys());
                    return LocalTransactionState.UNKNOW;
                }
                say("checked " + message.getKeys() + " " + message.getTopic() + " " + new String(message.getBody(), StandardCharsets.UTF_8));
                return state(arguments[2]);
            }
        });
        producer.start();
        for (int at = 3; at + 2 < arguments.length; at += 3) {
            byte[] body = ("body of " + arguments[at + 1]).getBytes(StandardCharsets.UTF_8);
            Message message = new Message(arguments[at], "tag", arguments[at + 1], body);
            deciding.add(message.getKeys());
            long begun = System.nanoTime();
            String state = arguments[at + 2];
            TransactionSendResult result = Patient.routed(() -> producer.sendMessageInTransaction(message, state));
            if (System.nanoTime() - begun > SLOW_NS) {
                say("slow " + message.getKeys());
            }
            deciding.remove(message.getKeys());
            say("sent " + arguments[at + 1] + " " + result.getSendStatus() + " " + result.getLocalTransactionState());
        }
        say("ready");
        while (System.in.read() >= 0) {
            continue;
        }
        producer.shutdown();
    }
}
