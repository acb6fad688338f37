import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.AlreadyClosedException;
import com.rabbitmq.client.CancelCallback;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.DeliverCallback;
import com.rabbitmq.client.Delivery;
import com.rabbitmq.client.GetResponse;
import com.rabbitmq.client.MessageProperties;
import com.rabbitmq.client.Recoverable;
import com.rabbitmq.client.RecoveryListener;
import com.rabbitmq.client.Return;
import com.rabbitmq.client.RpcClient;
import com.rabbitmq.client.RpcClientParams;
import com.rabbitmq.client.RpcServer;
import com.rabbitmq.client.ShutdownSignalException;
import java.io.IOException;
import java.math.BigDecimal;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Collections;
import java.util.Date;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentSkipListSet;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/** RabbitMQ's Java client with its defaults. */
public final class Plain {
    private static final CancelCallback NOTHING = tag -> { };
    private static ConnectionFactory factory;

    private interface Action {
        void run(Channel channel) throws Exception;
    }

    public static void main(String[] arguments) throws Exception {
        factory = new ConnectionFactory();
        factory.setUri(arguments[0]);
        Map<String, Scenarios.Scenario> scenarios = new LinkedHashMap<>();
        scenarios.put("publish-and-consume", Plain::publishAndConsume);
        scenarios.put("confirms-by-listener", Plain::confirms);
        scenarios.put("headers-of-every-type", Plain::headers);
        scenarios.put("nack-to-the-dead-letters", Plain::deadLetters);
        scenarios.put("mandatory-return", Plain::mandatory);
        scenarios.put("exchanges", Plain::exchanges);
        scenarios.put("queue-arguments", Plain::arguments);
        scenarios.put("consumers", Plain::consumers);
        scenarios.put("transactions", Plain::transactions);
        scenarios.put("questions-and-answers", Plain::questions);
        scenarios.put("errors-close-the-channel-only", Plain::failures);
        scenarios.put("recovers-after-a-restart", Plain::recovers);
        Scenarios.run(scenarios);
    }

    private static void with(Action action) throws Exception {
        try (Connection connection = factory.newConnection()) {
            action.run(connection.createChannel());
        }
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static String text(byte[] bytes) {
        return new String(bytes, StandardCharsets.UTF_8);
    }

    private static String temporary(Channel channel) throws IOException {
        return channel.queueDeclare().getQueue();
    }

    private static GetResponse get(Channel channel, String queue) throws Exception {
        return Scenarios.until(() -> channel.basicGet(queue, false));
    }

    private static Delivery next(BlockingQueue<Delivery> deliveries) throws Exception {
        Delivery found = deliveries.poll(60, TimeUnit.SECONDS);
        if (found == null) {
            throw new AssertionError("nothing was delivered");
        }
        return found;
    }

    private static void send(Channel channel, String queue, String... bodies) throws Exception {
        channel.confirmSelect();
        for (String body : bodies) {
            channel.basicPublish("", queue, MessageProperties.PERSISTENT_TEXT_PLAIN, bytes(body));
        }
        channel.waitForConfirmsOrDie(60_000);
    }

    private static void publishAndConsume() throws Exception {
        with(channel -> {
            String queue = Scenarios.unique("jobs");
            channel.queueDeclare(queue, true, false, false, null);
            String[] bodies = new String[50];
            Arrays.setAll(bodies, number -> "job " + number);
            send(channel, queue, bodies);
            channel.basicQos(5);
            BlockingQueue<Delivery> deliveries = new LinkedBlockingQueue<>();
            String tag = channel.basicConsume(queue, false, (name, delivery) -> deliveries.add(delivery), NOTHING);
            for (String body : bodies) {
                Delivery delivery = next(deliveries);
                Scenarios.same(text(delivery.getBody()), body);
                channel.basicAck(delivery.getEnvelope().getDeliveryTag(), false);
            }
            channel.basicCancel(tag);
            Scenarios.same(channel.messageCount(queue), 0L);
            channel.queueDelete(queue);
        });
    }

    private static void confirms() throws Exception {
        with(channel -> {
            Map<String, Object> limits = Map.of("x-max-length", 50, "x-overflow", "reject-publish");
            String queue = channel.queueDeclare("", false, true, true, limits).getQueue();
            Set<Long> open = new ConcurrentSkipListSet<>();
            Set<Long> refused = ConcurrentHashMap.newKeySet();
            channel.confirmSelect();
            channel.addConfirmListener((tag, multiple) -> open.removeIf(each -> multiple ? each <= tag : each == tag), (tag, multiple) -> {
                for (Long each : open) {
                    if (multiple ? each <= tag : each == tag) {
                        refused.add(each);
                        open.remove(each);
                    }
                }
            });
            for (int number = 0; number < 80; number++) {
                open.add(channel.getNextPublishSeqNo());
                channel.basicPublish("", queue, null, bytes("x"));
            }
            Scenarios.until(open::isEmpty);
            Scenarios.same(refused.size(), 30);
        });
    }

    private static void headers() throws Exception {
        with(channel -> {
            String queue = temporary(channel);
            Map<String, Object> given = new LinkedHashMap<>();
            given.put("bool", true);
            given.put("byte", (byte) -8);
            given.put("short", (short) -16);
            given.put("int", -32);
            given.put("long", 1L << 40);
            given.put("float", 1.5f);
            given.put("double", 2.5);
            given.put("decimal", new BigDecimal("3.14"));
            given.put("date", new Date(1_700_000_000_000L));
            given.put("nothing", null);
            given.put("list", List.of(1, 2));
            given.put("table", Map.of("inner", Map.of("deep", 1)));
            AMQP.BasicProperties properties = new AMQP.BasicProperties.Builder().headers(given).contentType("text/plain").contentEncoding("utf-8")
                .deliveryMode(2).priority(3).correlationId("c").replyTo("r").expiration("60000").messageId("m").timestamp(new Date(1_700_000_000_000L))
                .type("t").userId("guest").appId("a").build();
            channel.confirmSelect();
            channel.basicPublish("", queue, properties, bytes("body"));
            channel.waitForConfirmsOrDie(60_000);
            Scenarios.same(get(channel, queue).getProps(), properties);
        });
    }

    private static void deadLetters() throws Exception {
        with(channel -> {
            String exchange = Scenarios.unique("dead");
            channel.exchangeDeclare(exchange, "direct", false, true, null);
            String sink = temporary(channel);
            channel.queueBind(sink, exchange, "gone");
            String queue = channel.queueDeclare("", false, true, true,
                Map.of("x-dead-letter-exchange", exchange, "x-dead-letter-routing-key", "gone")).getQueue();
            send(channel, queue, "poison");
            channel.basicNack(get(channel, queue).getEnvelope().getDeliveryTag(), false, false);
            GetResponse dead = get(channel, sink);
            List<?> deaths = (List<?>) dead.getProps().getHeaders().get("x-death");
            Map<?, ?> death = (Map<?, ?>) deaths.get(0);
            Scenarios.same(death.get("count"), 1L);
            Scenarios.same(death.get("reason").toString(), "rejected");
            Scenarios.same(death.get("queue").toString(), queue);
            channel.basicAck(dead.getEnvelope().getDeliveryTag(), false);
        });
    }

    private static void mandatory() throws Exception {
        with(channel -> {
            BlockingQueue<Return> returned = new LinkedBlockingQueue<>();
            channel.addReturnListener(returned::add);
            channel.confirmSelect();
            channel.basicPublish("amq.direct", Scenarios.unique("nobody"), true, null, bytes("lost"));
            channel.waitForConfirmsOrDie(60_000);
            Return found = returned.poll(60, TimeUnit.SECONDS);
            Scenarios.same(found.getReplyCode() + " " + found.getReplyText(), "312 NO_ROUTE");
        });
    }

    private static void exchanges() throws Exception {
        with(channel -> {
            String topic = Scenarios.unique("topic");
            String inner = Scenarios.unique("inner");
            String rest = Scenarios.unique("rest");
            channel.exchangeDeclare(rest, "fanout", false, true, null);
            channel.exchangeDeclare(topic, "topic", false, true, Map.of("alternate-exchange", rest));
            channel.exchangeDeclare(inner, "headers", false, true, true, null);
            channel.exchangeBind(inner, topic, "a.#");
            String queue = temporary(channel);
            String others = temporary(channel);
            channel.queueBind(queue, inner, "", Map.of("x-match", "all", "size", 2));
            channel.queueBind(others, rest, "");
            channel.confirmSelect();
            AMQP.BasicProperties two = new AMQP.BasicProperties.Builder().headers(Map.of("size", 2L)).build();
            channel.basicPublish(topic, "a.b", two, bytes("in"));
            channel.basicPublish(topic, "b", two, bytes("out"));
            channel.waitForConfirmsOrDie(60_000);
            Scenarios.same(text(get(channel, queue).getBody()), "in");
            Scenarios.same(text(get(channel, others).getBody()), "out");
            channel.exchangeDeclarePassive(topic);
            channel.exchangeUnbind(inner, topic, "a.#");
        });
    }

    private static void arguments() throws Exception {
        with(channel -> {
            String sink = temporary(channel);
            Map<String, Object> waits = Map.of("x-message-ttl", 30, "x-dead-letter-exchange", "", "x-dead-letter-routing-key", sink);
            send(channel, channel.queueDeclare("", false, true, true, waits).getQueue(), "old");
            Scenarios.same(text(get(channel, sink).getBody()), "old");
            String ranked = channel.queueDeclare("", false, true, true, Map.of("x-max-priority", 5)).getQueue();
            for (int priority : new int[] {1, 5, 3}) {
                channel.basicPublish("", ranked, new AMQP.BasicProperties.Builder().priority(priority).build(), bytes("" + priority));
            }
            channel.waitForConfirmsOrDie(60_000);
            StringBuilder seen = new StringBuilder();
            for (int number = 0; number < 3; number++) {
                seen.append(text(get(channel, ranked).getBody()));
            }
            Scenarios.same(seen.toString(), "531");
            String quorum = Scenarios.unique("quorum");
            channel.queueDeclare(quorum, true, false, false, Map.of("x-queue-type", "quorum", "x-delivery-limit", 1,
                "x-dead-letter-exchange", "", "x-dead-letter-routing-key", sink));
            send(channel, quorum, "poison");
            channel.basicReject(get(channel, quorum).getEnvelope().getDeliveryTag(), true);
            GetResponse again = get(channel, quorum);
            Scenarios.same(again.getProps().getHeaders().get("x-delivery-count"), 1L);
            channel.basicReject(again.getEnvelope().getDeliveryTag(), true);
            Scenarios.same(text(get(channel, sink).getBody()), "poison");
            channel.queueDelete(quorum);
        });
    }

    private static void consumers() throws Exception {
        with(channel -> {
            String queue = Scenarios.unique("shared");
            channel.queueDeclare(queue, true, false, false, null);
            BlockingQueue<String> seen = new LinkedBlockingQueue<>();
            CountDownLatch told = new CountDownLatch(2);
            DeliverCallback low = (tag, delivery) -> seen.add("low");
            DeliverCallback high = (tag, delivery) -> seen.add("high");
            channel.basicQos(1);
            channel.basicConsume(queue, false, Map.of("x-priority", 1), low, tag -> told.countDown());
            channel.basicConsume(queue, false, Map.of("x-priority", 9), high, tag -> told.countDown());
            send(channel, queue, "1", "2");
            Scenarios.same(seen.poll(60, TimeUnit.SECONDS), "high");
            Scenarios.same(seen.poll(60, TimeUnit.SECONDS), "low");
            Scenarios.same(channel.consumerCount(queue), 2L);
            try (Channel other = channel.getConnection().createChannel()) {
                other.queueDelete(queue);
            }
            Scenarios.same(told.await(60, TimeUnit.SECONDS), true);
        });
    }

    private static void transactions() throws Exception {
        with(channel -> {
            String queue = temporary(channel);
            channel.txSelect();
            channel.basicPublish("", queue, null, bytes("forgotten"));
            channel.txRollback();
            channel.basicPublish("", queue, null, bytes("kept"));
            Scenarios.same(channel.messageCount(queue), 0L);
            channel.txCommit();
            Scenarios.same(text(get(channel, queue).getBody()), "kept");
        });
    }

    private static void questions() throws Exception {
        with(channel -> {
            String queue = temporary(channel);
            RpcServer server = new RpcServer(channel, queue) {
                @Override
                public byte[] handleCall(byte[] request, AMQP.BasicProperties properties) {
                    return bytes(text(request) + " answered");
                }
            };
            Thread serving = new Thread(() -> {
                try {
                    server.mainloop();
                } catch (IOException | ShutdownSignalException error) {
                    return; // the connection ends before the server does
                }
            });
            serving.start();
            try (Connection connection = factory.newConnection()) {
                RpcClient client = new RpcClient(new RpcClientParams().channel(connection.createChannel()).exchange("").routingKey(queue).timeout(60_000));
                Scenarios.same(client.stringCall("question"), "question answered");
            }
        });
    }

    private static void failures() throws Exception {
        with(channel -> {
            try {
                channel.queueDeclarePassive("no-such-queue");
                throw new AssertionError("a queue that is not there was found");
            } catch (IOException error) {
                AMQP.Channel.Close said = (AMQP.Channel.Close) ((ShutdownSignalException) error.getCause()).getReason();
                Scenarios.same(said.getReplyCode() + " " + said.getReplyText(), "404 NOT_FOUND - no queue 'no-such-queue' in vhost '/'");
            }
            Channel next = channel.getConnection().createChannel();
            String queue = temporary(next);
            try {
                next.queueDeclare(queue, false, true, true, Map.of("x-max-length", 5));
                throw new AssertionError("other arguments were taken");
            } catch (IOException error) {
                AMQP.Channel.Close said = (AMQP.Channel.Close) ((ShutdownSignalException) error.getCause()).getReason();
                Scenarios.same(said.getReplyText(), "PRECONDITION_FAILED - inequivalent arg 'x-max-length' for queue '" + queue
                    + "' in vhost '/': received the value '5' of type 'signedint' but current is none");
            }
            try {
                next.basicAck(1, false);
                throw new AssertionError("the channel is still open");
            } catch (AlreadyClosedException error) {
                Scenarios.same(channel.getConnection().isOpen(), true);
            }
        });
    }

    private static void recovers() throws Exception {
        Connection connection = factory.newConnection();
        CountDownLatch recovered = new CountDownLatch(1);
        ((Recoverable) connection).addRecoveryListener(new RecoveryListener() {
            @Override
            public void handleRecovery(Recoverable recoverable) {
                recovered.countDown();
            }

            @Override
            public void handleRecoveryStarted(Recoverable recoverable) {
                Scenarios.same(recoverable, connection);
            }
        });
        Channel channel = connection.createChannel();
        String exchange = Scenarios.unique("events");
        String kept = Scenarios.unique("kept");
        channel.exchangeDeclare(exchange, "topic", false, true, null); // goes with the server; the client declares it again
        channel.queueDeclare(kept, true, false, false, null);
        String own = temporary(channel);
        channel.queueBind(own, exchange, "#");
        Set<String> seen = ConcurrentHashMap.newKeySet();
        channel.basicConsume(own, true, (tag, delivery) -> seen.add("own " + text(delivery.getBody())), NOTHING);
        send(channel, kept, "1", "2", "3");
        get(channel, kept);
        Scenarios.outside("restart");
        Scenarios.same(recovered.await(60, TimeUnit.SECONDS), true);
        channel.basicConsume(kept, false, (tag, delivery) -> {
            seen.add("kept " + text(delivery.getBody()) + (delivery.getEnvelope().isRedeliver() ? " again" : ""));
            channel.basicAck(delivery.getEnvelope().getDeliveryTag(), false);
        }, NOTHING);
        channel.basicPublish(exchange, "any", null, bytes("after"));
        Scenarios.until(() -> seen.size() >= 4);
        Scenarios.same(seen.contains("kept 1 again") && seen.contains("own after"), true);
        channel.queueDelete(kept);
        connection.close();
        Scenarios.same(Collections.disjoint(seen, List.of("kept 1")), true);
    }
}
