// Pulls every message of topics with RocketMQ's own client, one JSON object per line: topic, queueId, queueOffset, keys, body;
// and the offset that the group has committed for each queue. java -cp CLASSPATH Consume.java NAMESERVER GROUP TOPIC...

import com.alibaba.fastjson2.JSON;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.Callable;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

public class Consume {
    public static void main(String[] arguments) {
        Program.run(Consume::run, arguments);
    }

    /** The client gives each of its questions a few seconds of its own, whatever the machine does beside. */
    static <T> T again(Callable<T> question) throws Exception {
        long end = System.currentTimeMillis() + 120000;
        while (true) {
            try {
                return question.call();
            } catch (MQClientException late) {
                if (System.currentTimeMillis() > end) {
                    throw late;
                }
            }
        }
    }

    static void run(String[] arguments) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(arguments[1]);
        consumer.setNamesrvAddr(arguments[0]);
        consumer.setMqClientApiTimeout(60000);
        consumer.setVipChannelEnabled(false);
        consumer.start();
        for (int place = 2; place < arguments.length; place++) {
            String topic = arguments[place];
            for (MessageQueue queue : again(() -> consumer.fetchSubscribeMessageQueues(topic))) {
                long offset = again(() -> consumer.minOffset(queue));
                long end = again(() -> consumer.maxOffset(queue));
                while (offset < end) {
                    PullResult result = consumer.pull(queue, "*", offset, 32, 60000);
                    if (result.getPullStatus() == PullStatus.FOUND) {
                        for (MessageExt message : result.getMsgFoundList()) {
                            Map<String, Object> line = new LinkedHashMap<>();
                            line.put("topic", message.getTopic());
                            line.put("queueId", message.getQueueId());
                            line.put("queueOffset", message.getQueueOffset());
                            line.put("keys", message.getKeys());
                            line.put("body", Base64.getEncoder().encodeToString(message.getBody()));
                            System.out.println(JSON.toJSONString(line));
                        }
                    }
                    if (result.getNextBeginOffset() <= offset) {
                        break;
                    }
                    offset = result.getNextBeginOffset();
                }
                System.out.println("{\"committed\":" + again(() -> consumer.fetchConsumeOffset(queue, true)) + ",\"topic\":\"" + queue.getTopic()
                    + "\",\"queueId\":" + queue.getQueueId() + "}");
            }
        }
    }
}
