// Prints every record of a commitlog directory as RocketMQ's own decoder reads it, one JSON object per line.
// java -cp CLASSPATH Dump.java DIR/store/commitlog

import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONWriter;
import java.io.File;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.util.Arrays;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;

public class Dump {
    static final int BLANK = 0xCBD43194;

    static String host(SocketAddress address) {
        InetSocketAddress host = (InetSocketAddress) address;
        byte[] bytes = host.getAddress().getAddress();
        ByteBuffer all = ByteBuffer.allocate(bytes.length + 4).put(bytes).putInt(host.getPort());
        StringBuilder text = new StringBuilder();
        for (byte part : all.array()) {
            text.append(String.format("%02x", part));
        }
        return text.toString();
    }

    public static void main(String[] arguments) throws Exception {
        File[] files = new File(arguments[0]).listFiles();
        Arrays.sort(files);
        for (File file : files) {
            ByteBuffer buffer = ByteBuffer.wrap(Files.readAllBytes(file.toPath()));
            while (buffer.remaining() > 8) {
                int size = buffer.getInt(buffer.position());
                int magic = buffer.getInt(buffer.position() + 4);
                if (size <= 0 || magic == BLANK) {
                    break;
                }
                MessageExt message = MessageDecoder.decode(buffer, true, false, false, true, true);
                Map<String, Object> line = new LinkedHashMap<>();
                line.put("topic", message.getTopic());
                line.put("queueId", message.getQueueId());
                line.put("queueOffset", message.getQueueOffset());
                line.put("commitLogOffset", message.getCommitLogOffset());
                line.put("storeSize", size);
                line.put("sysFlag", message.getSysFlag());
                line.put("flag", message.getFlag());
                line.put("bornTimestamp", message.getBornTimestamp());
                line.put("bornHost", host(message.getBornHost()));
                line.put("storeTimestamp", message.getStoreTimestamp());
                line.put("storeHost", host(message.getStoreHost()));
                line.put("reconsumeTimes", message.getReconsumeTimes());
                line.put("preparedTransactionOffset", message.getPreparedTransactionOffset());
                line.put("properties", new TreeMap<>(message.getProperties()));
                line.put("body", Base64.getEncoder().encodeToString(message.getBody()));
                System.out.println(JSON.toJSONString(line, JSONWriter.Feature.BrowserCompatible));
            }
        }
    }
}
