import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** The two Java clients of Eclipse Paho do what lines of words on standard input say: driver.py has the words. */
public class PahoDriver {
    private static final long WAIT_MS = 60_000;
    private static final Map<String, Client> clients = new HashMap<>();

    private interface Client {
        boolean connect(String url, int level, String id, boolean clean, String will) throws Exception;

        int subscribe(String filter, int qos) throws Exception;

        void publish(String topic, int qos, boolean retain, List<byte[]> bodies) throws Exception;

        void disconnect() throws Exception;
    }

    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    private static void arrived(String name, String topic, int qos, boolean retained, byte[] payload) {
        String body = payload.length == 0 ? "-" : new String(payload, StandardCharsets.UTF_8);
        say("message " + name + " " + topic + " " + qos + " " + (retained ? 1 : 0) + " " + body);
    }

    /** MQTT 3.1 and 3.1.1. */
    private static class Client3 implements Client {
        private final String name;
        private org.eclipse.paho.client.mqttv3.MqttAsyncClient client;

        Client3(String name) {
            this.name = name;
        }

        public boolean connect(String url, int level, String id, boolean clean, String will) throws Exception {
            var options = new org.eclipse.paho.client.mqttv3.MqttConnectOptions();
            options.setMqttVersion(level);
            options.setCleanSession(clean);
            options.setMaxInflight(1000);
            if (!will.equals("-")) {
                options.setWill(will, "gone".getBytes(), 1, false);
            }
            var persistence = new org.eclipse.paho.client.mqttv3.persist.MemoryPersistence();
            client = new org.eclipse.paho.client.mqttv3.MqttAsyncClient(url, id, persistence);
            client.setCallback(new org.eclipse.paho.client.mqttv3.MqttCallback() {
                public void connectionLost(Throwable why) {}

                public void messageArrived(String topic, org.eclipse.paho.client.mqttv3.MqttMessage message) {
                    arrived(name, topic, message.getQos(), message.isRetained(), message.getPayload());
                }

                public void deliveryComplete(org.eclipse.paho.client.mqttv3.IMqttDeliveryToken token) {}
            });
            var token = client.connect(options);
            token.waitForCompletion(WAIT_MS);
            return token.getSessionPresent();
        }

        public int subscribe(String filter, int qos) throws Exception {
            var token = client.subscribe(filter, qos);
            token.waitForCompletion(WAIT_MS);
            return token.getGrantedQos()[0];
        }

        public void publish(String topic, int qos, boolean retain, List<byte[]> bodies) throws Exception {
            var tokens = new ArrayList<org.eclipse.paho.client.mqttv3.IMqttToken>();
            for (byte[] body : bodies) {
                tokens.add(client.publish(topic, body, qos, retain));
            }
            for (var token : tokens) {
                token.waitForCompletion(WAIT_MS);
            }
        }

        public void disconnect() throws Exception {
            client.disconnect().waitForCompletion(WAIT_MS);
            client.close();
        }
    }

    /** MQTT 5.0. */
    private static class Client5 implements Client {
        private final String name;
        private org.eclipse.paho.mqttv5.client.MqttAsyncClient client;

        Client5(String name) {
            this.name = name;
        }

        public boolean connect(String url, int level, String id, boolean clean, String will) throws Exception {
            var options = new org.eclipse.paho.mqttv5.client.MqttConnectionOptions();
            options.setCleanStart(clean);
            options.setSessionExpiryInterval(clean ? 0L : 3600L);
            if (!will.equals("-")) {
                var message = new org.eclipse.paho.mqttv5.common.MqttMessage("gone".getBytes());
                message.setQos(1);
                options.setWill(will, message);
            }
            var persistence = new org.eclipse.paho.mqttv5.client.persist.MemoryPersistence();
            client = new org.eclipse.paho.mqttv5.client.MqttAsyncClient(url, id, persistence);
            client.setCallback(new org.eclipse.paho.mqttv5.client.MqttCallback() {
                public void disconnected(org.eclipse.paho.mqttv5.client.MqttDisconnectResponse response) {}

                public void mqttErrorOccurred(org.eclipse.paho.mqttv5.common.MqttException error) {
                    System.err.println(error);
                }

                public void messageArrived(String topic, org.eclipse.paho.mqttv5.common.MqttMessage message) {
                    arrived(name, topic, message.getQos(), message.isRetained(), message.getPayload());
                }

                public void deliveryComplete(org.eclipse.paho.mqttv5.client.IMqttToken token) {}

                public void connectComplete(boolean again, String server) {}

                public void authPacketArrived(
                        int reason, org.eclipse.paho.mqttv5.common.packet.MqttProperties properties) {}
            });
            var token = client.connect(options);
            token.waitForCompletion(WAIT_MS);
            return token.getSessionPresent();
        }

        public int subscribe(String filter, int qos) throws Exception {
            var token = client.subscribe(filter, qos);
            token.waitForCompletion(WAIT_MS);
            return token.getReasonCodes()[0];
        }

        public void publish(String topic, int qos, boolean retain, List<byte[]> bodies) throws Exception {
            var tokens = new ArrayList<org.eclipse.paho.mqttv5.client.IMqttToken>();
            for (byte[] body : bodies) {
                tokens.add(client.publish(topic, body, qos, retain));
            }
            for (var token : tokens) {
                token.waitForCompletion(WAIT_MS);
            }
        }

        public void disconnect() throws Exception {
            client.disconnect().waitForCompletion(WAIT_MS);
            client.close();
        }
    }

    private static String act(String[] words) throws Exception {
        String name = words[1];
        switch (words[0]) {
            case "connect":
                Client made = words[3].equals("5") ? new Client5(name) : new Client3(name);
                clients.put(name, made);
                int level = Integer.parseInt(words[3]);
                return made.connect(words[2], level, words[4], words[5].equals("1"), words[6]) ? "1" : "0";
            case "subscribe":
                return Integer.toString(clients.get(name).subscribe(words[2], Integer.parseInt(words[3])));
            case "publish":
                List<byte[]> bodies = new ArrayList<>();
                for (int i = 0; i < Integer.parseInt(words[5]); i++) {
                    String body = words[6].equals("-") ? "" : words[6] + "." + i;
                    bodies.add(body.getBytes(StandardCharsets.UTF_8));
                }
                clients.get(name).publish(words[2], Integer.parseInt(words[3]), words[4].equals("1"), bodies);
                return "";
            case "disconnect":
                clients.get(name).disconnect();
                return "";
            default:
                throw new IllegalArgumentException("no such word: " + words[0]);
        }
    }

    public static void main(String[] arguments) throws Exception {
        var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            try {
                say("ok " + act(line.split(" ")));
            } catch (Exception error) {
                say("failed " + error);
            }
        }
        System.exit(0);
    }
}
