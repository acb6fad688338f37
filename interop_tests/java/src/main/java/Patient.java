import java.util.Collection;
import java.util.concurrent.Callable;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.MessageQueueSelector;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

/**
 * A producer for busy machines: where the client could not get a route, because another of its threads asked the nameserver and had no answer
 * for three seconds, nothing was sent, and it tries again. A limit of the client itself that no setting changes.
 */
final class Patient extends DefaultMQProducer {
    static final int CALL_MS = 60_000;
    private static final long LIMIT_MS = 120_000;

    Patient(String group, String nameservers) {
        super(group);
        setNamesrvAddr(nameservers);
        setSendMsgTimeout(CALL_MS); // a send that is repeated would be there twice
        setMqClientApiTimeout(CALL_MS);
    }

    /** What `action` gives, once there is a route. */
    static <T> T routed(Callable<T> action) {
        long end = System.currentTimeMillis() + LIMIT_MS;
        while (true) {
            try {
                return action.call();
            } catch (Exception error) {
                if (!unrouted(error) || System.currentTimeMillis() > end) {
                    throw sneaky(error);
                }
            }
            LockSupport.parkNanos(50_000_000);
        }
    }

    private static boolean unrouted(Throwable error) {
        return error != null && (String.valueOf(error.getMessage()).contains("No route info") || unrouted(error.getCause()));
    }

    @SuppressWarnings("unchecked")
    private static <E extends Throwable> RuntimeException sneaky(Throwable error) throws E {
        throw (E) error;
    }

    @Override
    public SendResult send(Message message) {
        return routed(() -> super.send(message));
    }

    @Override
    public SendResult send(Message message, MessageQueueSelector selector, Object argument) {
        return routed(() -> super.send(message, selector, argument));
    }

    @Override
    public SendResult send(Collection<Message> batch) {
        return routed(() -> super.send(batch));
    }

    @Override
    public void sendOneway(Message message) {
        routed(() -> {
            super.sendOneway(message);
            return true;
        });
    }

    @Override
    public void request(Message message, RequestCallback callback, long timeoutMs) {
        routed(() -> {
            super.request(message, callback, timeoutMs);
            return true;
        });
    }
}
