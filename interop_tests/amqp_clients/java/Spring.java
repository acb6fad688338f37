import java.net.URI;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.springframework.amqp.AmqpRejectAndDontRequeueException;
import org.springframework.amqp.core.AcknowledgeMode;
import org.springframework.amqp.core.Binding;
import org.springframework.amqp.core.BindingBuilder;
import org.springframework.amqp.core.CustomExchange;
import org.springframework.amqp.core.Declarables;
import org.springframework.amqp.core.DirectExchange;
import org.springframework.amqp.core.FanoutExchange;
import org.springframework.amqp.core.HeadersExchange;
import org.springframework.amqp.core.Message;
import org.springframework.amqp.core.MessageBuilder;
import org.springframework.amqp.core.Queue;
import org.springframework.amqp.core.QueueBuilder;
import org.springframework.amqp.core.QueueInformation;
import org.springframework.amqp.core.ReturnedMessage;
import org.springframework.amqp.core.TopicExchange;
import org.springframework.amqp.rabbit.annotation.EnableRabbit;
import org.springframework.amqp.rabbit.annotation.Exchange;
import org.springframework.amqp.rabbit.annotation.QueueBinding;
import org.springframework.amqp.rabbit.annotation.RabbitListener;
import org.springframework.amqp.rabbit.config.SimpleRabbitListenerContainerFactory;
import org.springframework.amqp.rabbit.connection.CachingConnectionFactory;
import org.springframework.amqp.rabbit.connection.CorrelationData;
import org.springframework.amqp.rabbit.core.RabbitAdmin;
import org.springframework.amqp.rabbit.core.RabbitTemplate;
import org.springframework.amqp.rabbit.listener.DirectMessageListenerContainer;
import org.springframework.amqp.rabbit.listener.SimpleMessageListenerContainer;
import org.springframework.amqp.rabbit.listener.api.ChannelAwareMessageListener;
import org.springframework.amqp.rabbit.transaction.RabbitTransactionManager;
import org.springframework.context.annotation.AnnotationConfigApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.messaging.handler.annotation.Header;
import org.springframework.transaction.support.TransactionTemplate;

/** Spring AMQP: an application's context with listeners, and templates. */
public final class Spring {
    private static final BlockingQueue<String> SEEN = new LinkedBlockingQueue<>();
    private static URI uri;
    private static AnnotationConfigApplicationContext context;
    private static RabbitTemplate template;
    private static RabbitAdmin admin;

    public static void main(String[] arguments) {
        uri = URI.create(arguments[0]);
        context = new AnnotationConfigApplicationContext(Application.class);
        template = context.getBean(RabbitTemplate.class);
        admin = context.getBean(RabbitAdmin.class);
        Map<String, Scenarios.Scenario> scenarios = new LinkedHashMap<>();
        scenarios.put("listeners", Spring::listeners);
        scenarios.put("listener-of-a-topic", Spring::topicListener);
        scenarios.put("headers", Spring::headers);
        scenarios.put("correlated-confirms", Spring::confirms);
        scenarios.put("returns", Spring::returns);
        scenarios.put("refused-to-the-dead-letters", Spring::deadLetters);
        scenarios.put("quorum-queue-counts", Spring::quorum);
        scenarios.put("time-to-live", Spring::timeToLive);
        scenarios.put("delayed-exchange", Spring::delayed);
        scenarios.put("priorities", Spring::priorities);
        scenarios.put("transacted-channel", Spring::transactions);
        scenarios.put("questions-and-answers", Spring::questions);
        scenarios.put("batch-of-a-direct-container", Spring::directContainer);
        scenarios.put("consumer-priority-and-exclusive", Spring::exclusive);
        scenarios.put("listener-goes-on-after-a-restart", Spring::restart);
        Scenarios.run(scenarios);
    }

    private static CachingConnectionFactory connections() {
        CachingConnectionFactory made = new CachingConnectionFactory(uri);
        made.setPublisherConfirmType(CachingConnectionFactory.ConfirmType.CORRELATED);
        made.setPublisherReturns(true);
        return made;
    }

    @Configuration
    @EnableRabbit
    public static class Application {
        @Bean
        CachingConnectionFactory connectionFactory() {
            return connections();
        }

        @Bean
        RabbitTemplate rabbitTemplate(CachingConnectionFactory factory) {
            RabbitTemplate made = new RabbitTemplate(factory);
            made.setMandatory(true);
            made.setReplyTimeout(60_000);
            made.setReceiveTimeout(60_000);
            return made;
        }

        @Bean
        RabbitAdmin rabbitAdmin(CachingConnectionFactory factory) {
            return new RabbitAdmin(factory);
        }

        @Bean
        SimpleRabbitListenerContainerFactory rabbitListenerContainerFactory(CachingConnectionFactory factory) {
            SimpleRabbitListenerContainerFactory made = new SimpleRabbitListenerContainerFactory();
            made.setConnectionFactory(factory);
            made.setRecoveryInterval(200L);
            return made;
        }

        @Bean
        Declarables declared() {
            Queue dead = QueueBuilder.durable("spring.dead").build();
            DirectExchange letters = new DirectExchange("spring.letters");
            Queue work = QueueBuilder.durable("spring.work").deadLetterExchange("spring.letters").deadLetterRoutingKey("dead").build();
            Queue calls = QueueBuilder.durable("spring.calls").build();
            Queue quorum = QueueBuilder.durable("spring.quorum").quorum().deliveryLimit(2).deadLetterExchange("spring.letters")
                .deadLetterRoutingKey("dead").build();
            Binding binding = BindingBuilder.bind(dead).to(letters).with("dead");
            return new Declarables(dead, letters, work, calls, quorum, binding);
        }

        @RabbitListener(queues = "spring.work", concurrency = "2")
        public void work(String text) {
            if (text.startsWith("poison")) {
                throw new AmqpRejectAndDontRequeueException(text);
            }
            SEEN.add(text);
        }

        @RabbitListener(queues = "spring.calls")
        public String call(String question) {
            return question + " answered";
        }

        @RabbitListener(queues = "spring.quorum")
        public void count(String text, @Header(name = "x-delivery-count", required = false) Long count) {
            SEEN.add(text + " " + count);
            throw new IllegalStateException("again"); // goes back to its queue by default
        }

        @RabbitListener(bindings = @QueueBinding(value = @org.springframework.amqp.rabbit.annotation.Queue,
            exchange = @Exchange(name = "spring.topic", type = "topic"), key = "a.*"))
        public void topic(String text, @Header("kind") String kind, @Header("amqp_receivedRoutingKey") String key) {
            SEEN.add(text + " " + kind + " " + key);
        }
    }

    private static String next() throws Exception {
        return SEEN.poll(60, TimeUnit.SECONDS);
    }

    private static String temporary(Map<String, Object> arguments) {
        Queue queue = new Queue(Scenarios.unique("spring"), false, true, false, arguments);
        return admin.declareQueue(queue);
    }

    private static void listeners() throws Exception {
        java.util.Set<String> all = new java.util.TreeSet<>();
        for (int number = 0; number < 50; number++) {
            template.convertAndSend("spring.work", "job " + number);
        }
        for (int number = 0; number < 50; number++) {
            all.add(next());
        }
        Scenarios.same(all.size(), 50);
    }

    private static void topicListener() throws Exception {
        template.convertAndSend("spring.topic", "a.b", "by topic", message -> {
            message.getMessageProperties().setHeader("kind", "x");
            return message;
        });
        Scenarios.same(next(), "by topic x a.b");
    }

    private static void headers() {
        HeadersExchange exchange = new HeadersExchange("spring.headers", false, true);
        admin.declareExchange(exchange);
        Queue queue = new Queue(temporary(Map.of()), false, true, false);
        admin.declareBinding(BindingBuilder.bind(queue).to(exchange).whereAll(Map.of("kind", "x", "size", 2)).match());
        for (int size = 1; size < 4; size++) {
            Message message = MessageBuilder.withBody(("size " + size).getBytes()).setHeader("kind", "x").setHeader("size", size)
                .setHeader("list", List.of("a", 1)).setContentType("text/plain").build();
            template.send("spring.headers", "", message, new CorrelationData("headers"));
        }
        Message found = template.receive(queue.getName());
        Scenarios.same(new String(found.getBody()), "size 2");
        Scenarios.same(found.getMessageProperties().getHeaders().get("list"), List.of("a", 1));
    }

    private static void confirms() throws Exception {
        String queue = temporary(Map.of("x-max-length", 5, "x-overflow", "reject-publish"));
        int taken = 0;
        for (int number = 0; number < 8; number++) {
            CorrelationData data = new CorrelationData("c" + number);
            template.convertAndSend("", queue, "x", data);
            taken += data.getFuture().get(60, TimeUnit.SECONDS).ack() ? 1 : 0;
        }
        Scenarios.same(taken, 5);
    }

    private static void returns() throws Exception {
        CorrelationData data = new CorrelationData("returned");
        template.convertAndSend("amq.direct", Scenarios.unique("nobody"), "lost", data);
        Scenarios.same(data.getFuture().get(60, TimeUnit.SECONDS).ack(), true);
        ReturnedMessage returned = data.getReturned();
        Scenarios.same(returned.getReplyCode() + " " + returned.getReplyText(), "312 NO_ROUTE");
    }

    private static void deadLetters() {
        template.convertAndSend("spring.work", "poison");
        Message dead = template.receive("spring.dead");
        Scenarios.same(new String(dead.getBody()), "poison");
        Map<String, ?> death = dead.getMessageProperties().getXDeathHeader().get(0);
        Scenarios.same(death.get("reason") + " " + death.get("queue") + " " + death.get("count"), "rejected spring.work 1");
    }

    private static void quorum() throws Exception {
        template.convertAndSend("spring.quorum", "again");
        Scenarios.same(next() + ", " + next() + ", " + next(), "again null, again 1, again 2");
        Message dead = template.receive("spring.dead");
        Scenarios.same(dead.getMessageProperties().getXDeathHeader().get(0).get("reason"), "delivery_limit");
    }

    private static void timeToLive() {
        String sink = temporary(Map.of());
        String waits = temporary(Map.of("x-message-ttl", 30, "x-dead-letter-exchange", "", "x-dead-letter-routing-key", sink, "x-expires", 60_000));
        template.convertAndSend("", waits, "by the queue");
        Scenarios.same(template.receiveAndConvert(sink), "by the queue");
        String patient = temporary(Map.of("x-dead-letter-exchange", "", "x-dead-letter-routing-key", sink));
        template.convertAndSend("", patient, "by itself", message -> {
            message.getMessageProperties().setExpiration("30");
            return message;
        });
        Scenarios.same(template.receiveAndConvert(sink), "by itself");
    }

    private static void delayed() {
        CustomExchange exchange = new CustomExchange("spring.delayed", "x-delayed-message", false, true, Map.of("x-delayed-type", "direct"));
        admin.declareExchange(exchange);
        Queue queue = new Queue(temporary(Map.of()), false, true, false);
        admin.declareBinding(BindingBuilder.bind(queue).to(exchange).with("later").noargs());
        for (long delay : new long[] {600, 100}) {
            template.convertAndSend("spring.delayed", "later", "after " + delay, message -> {
                message.getMessageProperties().setDelayLong(delay);
                return message;
            });
        }
        Scenarios.same(template.receiveAndConvert(queue.getName()), "after 100");
        Scenarios.same(template.receiveAndConvert(queue.getName()), "after 600");
    }

    private static void priorities() throws Exception {
        String queue = temporary(Map.of("x-max-priority", 10));
        for (int priority : new int[] {1, 9, 5}) {
            CorrelationData data = new CorrelationData("p" + priority);
            template.convertAndSend("", queue, priority, message -> {
                message.getMessageProperties().setPriority(priority);
                return message;
            }, data);
            data.getFuture().get(60, TimeUnit.SECONDS);
        }
        StringBuilder seen = new StringBuilder();
        for (int number = 0; number < 3; number++) {
            seen.append(template.receiveAndConvert(queue));
        }
        Scenarios.same(seen.toString(), "951");
    }

    private static void transactions() {
        CachingConnectionFactory factory = new CachingConnectionFactory(uri);
        try {
            RabbitTemplate transacted = new RabbitTemplate(factory);
            transacted.setChannelTransacted(true);
            Queue queue = new Queue(Scenarios.unique("spring.tx"), true, false, false);
            admin.declareQueue(queue);
            TransactionTemplate work = new TransactionTemplate(new RabbitTransactionManager(factory));
            work.executeWithoutResult(status -> {
                transacted.convertAndSend(queue.getName(), "forgotten");
                status.setRollbackOnly();
            });
            work.executeWithoutResult(status -> transacted.convertAndSend(queue.getName(), "kept"));
            Scenarios.same(template.receiveAndConvert(queue.getName()), "kept");
            admin.deleteQueue(queue.getName());
        } finally {
            factory.destroy();
        }
    }

    private static void questions() {
        for (int number = 0; number < 5; number++) {
            Scenarios.same(template.convertSendAndReceive("", "spring.calls", "question " + number), "question " + number + " answered");
        }
    }

    private static void directContainer() throws Exception {
        String queue = admin.declareQueue(new Queue(Scenarios.unique("spring.direct"), true, false, false));
        DirectMessageListenerContainer container = new DirectMessageListenerContainer(context.getBean(CachingConnectionFactory.class));
        container.setQueueNames(queue);
        container.setConsumersPerQueue(2);
        container.setMessagesPerAck(4);
        container.setMessageListener(message -> SEEN.add(new String(message.getBody())));
        container.start();
        for (int number = 0; number < 10; number++) {
            template.convertAndSend("", queue, "direct");
        }
        for (int number = 0; number < 10; number++) {
            Scenarios.same(next(), "direct");
        }
        container.stop();
        QueueInformation left = admin.getQueueInfo(queue);
        Scenarios.same(left.getMessageCount(), 0L);
        admin.deleteQueue(queue);
    }

    private static void exclusive() throws Exception {
        String queue = admin.declareQueue(new Queue(Scenarios.unique("spring.exclusive"), true, false, false));
        SimpleMessageListenerContainer container = new SimpleMessageListenerContainer(context.getBean(CachingConnectionFactory.class));
        container.setQueueNames(queue);
        container.setExclusive(true);
        container.setConsumerArguments(Map.of("x-priority", 10));
        container.setAcknowledgeMode(AcknowledgeMode.MANUAL);
        ChannelAwareMessageListener listener = (message, channel) -> {
            channel.basicAck(message.getMessageProperties().getDeliveryTag(), false);
            SEEN.add(new String(message.getBody()));
        };
        container.setMessageListener(listener);
        container.start();
        template.convertAndSend("", queue, "mine");
        Scenarios.same(next(), "mine");
        container.stop();
        admin.deleteQueue(queue);
    }

    private static void restart() throws Exception {
        FanoutExchange fanout = new FanoutExchange("spring.fanout");
        admin.declareExchange(fanout);
        admin.declareExchange(new TopicExchange("spring.again"));
        Scenarios.outside("restart");
        Scenarios.until(() -> {
            CorrelationData data = new CorrelationData("after");
            template.convertAndSend("", "spring.work", "after", data);
            return data.getFuture().get(60, TimeUnit.SECONDS).ack();
        });
        Scenarios.same(next(), "after");
        template.convertAndSend("spring.topic", "a.c", "again", message -> {
            message.getMessageProperties().setHeader("kind", "y");
            return message;
        });
        String found = next();
        Scenarios.same("after".equals(found) ? next() : found, "again y a.c");
    }
}
