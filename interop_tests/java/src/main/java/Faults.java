import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentSkipListSet;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;

/** Processes that are killed. */
final class Faults extends Scenarios {
    static final int MESSAGES = 600;

    static void register() {
        ALONE.put("two-nameservers", Faults::nameservers);
        ALONE.put("broker-restart", Faults::restart);
    }

    /**
     * One of two nameservers is killed: clients that run and clients that start go on, with topics they never saw. Client 5.3.3 tries one
     * nameserver only per call, so a call may fail once.
     */
    static void nameservers() throws Exception {
        outside("kill-nameserver");
        try {
            DefaultMQProducer fresh = producer("fresh");
            for (String body : names("n", 10)) {
                stored(stubborn(fresh, message("two-nameservers", "tag", "fresh-" + body)));
                stored(stubborn(producer, message("two-nameservers", "tag", "old-" + body)));
            }
            try (Collector seen = again(() -> Collector.of("two-nameservers", "*"))) {
                Set<String> wanted = new TreeSet<>(names("fresh-n", 10));
                wanted.addAll(names("old-n", 10));
                seen.exactly(wanted);
            }
            fresh.shutdown();
        } finally {
            outside("start-nameserver");
        }
    }

    /** A broker that starts knows no subscriptions until the next heartbeat. */
    static Collector staying() throws Exception {
        Collector made = new Collector(consumer("broker-restart"));
        made.consumer.setHeartbeatBrokerInterval(1000);
        made.consumer.subscribe(topic("broker-restart"), "*");
        made.consumer.start();
        return made;
    }

    /** kill -9 of the broker under load: what was acknowledged is delivered, to a consumer that stayed. */
    static void restart() throws Exception {
        Set<String> acknowledged = new ConcurrentSkipListSet<>();
        try (Collector seen = again(Faults::staying)) {
            List<Integer> again = new ArrayList<>();
            for (int i = 0; i < MESSAGES; i++) {
                if (i == MESSAGES / 2) {
                    outside("kill-broker-soon"); // comes back at once; the kill falls among the next sends
                }
                int number = i;
                producer.send(message("broker-restart", "tag", "r" + i), new SendCallback() {
                    @Override
                    public void onSuccess(SendResult sent) {
                        if (sent.getSendStatus() == SendStatus.SEND_OK) {
                            acknowledged.add("r" + number);
                        }
                    }

                    @Override
                    public void onException(Throwable error) {
                        synchronized (again) {
                            again.add(number);
                        }
                    }
                }, 3000);
                Thread.sleep(1);
            }
            until(() -> {
                synchronized (again) {
                    return acknowledged.size() + again.size() >= MESSAGES;
                }
            }, () -> acknowledged.size() + " acknowledged, " + again.size() + " failed");
            outside("broker-is-back");
            for (int number : again) {
                stored(stubborn(producer, message("broker-restart", "tag", "r" + number)));
                acknowledged.add("r" + number);
            }
            same(acknowledged.size(), MESSAGES);
            until(() -> seen.counts().keySet().containsAll(acknowledged), () -> {
                Set<String> missing = new TreeSet<>(acknowledged);
                missing.removeAll(seen.counts().keySet());
                return missing.size() + " acknowledged and not delivered: " + missing;
            });
        }
    }
}
