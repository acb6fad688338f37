// What RocketMQ's own classes make of SQL92 expressions. Reads lines `expression TAB properties` (properties as a record holds them; both with
// \\, \t, \n, \r and \\uXXXX escaped), writes one letter for each: P no expression (parsing throws), T, F, N true, false, unknown, E evaluating throws.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.filter.expression.EvaluationContext;
import org.apache.rocketmq.filter.expression.Expression;
import org.apache.rocketmq.filter.parser.SelectorParser;

public class Evaluate {
    static String plain(String text) {
        StringBuilder out = new StringBuilder();
        for (int i = 0; i < text.length(); i++) {
            char c = text.charAt(i);
            if (c != '\\') {
                out.append(c);
                continue;
            }
            c = text.charAt(++i);
            if (c == 'u') {
                out.append((char) Integer.parseInt(text.substring(i + 1, i + 5), 16));
                i += 4;
            } else {
                out.append(c == 't' ? '\t' : c == 'n' ? '\n' : c == 'r' ? '\r' : c);
            }
        }
        return out.toString();
    }

    static char result(String expression, Map<String, String> properties) {
        Expression compiled;
        try {
            compiled = SelectorParser.parse(expression);
        } catch (Throwable e) {
            return 'P';
        }
        try {
            Object value = compiled.evaluate(new EvaluationContext() {
                public Object get(String name) {
                    return properties.get(name);
                }

                public Map<String, Object> keyValues() {
                    return new HashMap<>(properties);
                }
            });
            return value == null ? 'N' : value == Boolean.TRUE ? 'T' : value == Boolean.FALSE ? 'F' : '?';
        } catch (Throwable e) {
            return 'E';
        }
    }

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        PrintStream out = new PrintStream(System.out, false, "US-ASCII");
        for (String line; (line = in.readLine()) != null; ) {
            int tab = line.indexOf('\t');
            Map<String, String> properties = MessageDecoder.string2messageProperties(plain(line.substring(tab + 1)));
            out.println(result(plain(line.substring(0, tab)), properties));
        }
        out.flush();
    }
}
