import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.util.Map;
import java.util.Objects;
import java.util.UUID;
import java.util.concurrent.Callable;

/** Runs scenarios one after the other and says how they ended; see program.py. */
final class Scenarios {
    interface Scenario {
        void run() throws Exception;
    }

    private static final long LIMIT_MS = 60_000;
    private static final BufferedReader INPUT = new BufferedReader(new InputStreamReader(System.in));

    private Scenarios() {
    }

    static void run(Map<String, Scenario> scenarios) {
        for (Map.Entry<String, Scenario> each : scenarios.entrySet()) {
            String result = "ok";
            try {
                each.getValue().run();
            } catch (Throwable error) {
                StringWriter text = new StringWriter();
                error.printStackTrace(new PrintWriter(text));
                result = text.toString().replace('\n', ' ').replace('\t', ' ');
            }
            System.out.println("RESULT " + each.getKey() + " " + result);
        }
        System.out.println("END");
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    /** Asks the test for something; comes back when it is done. */
    static void outside(String what) throws Exception {
        System.out.println("DO " + what);
        INPUT.readLine();
    }

    static String unique(String name) {
        return name + "-" + UUID.randomUUID();
    }

    /** What the call gives as soon as it is neither null nor false; what it throws before the time is over counts as not yet. */
    static <T> T until(Callable<T> call) throws Exception {
        long end = System.currentTimeMillis() + LIMIT_MS;
        while (true) {
            Exception last = null;
            try {
                T found = call.call();
                if (found != null && !Boolean.FALSE.equals(found)) {
                    return found;
                }
            } catch (Exception error) {
                last = error;
            }
            if (System.currentTimeMillis() > end) {
                throw new AssertionError("not in time", last);
            }
            Thread.sleep(20);
        }
    }

    static void same(Object seen, Object wanted) {
        if (!Objects.equals(seen, wanted)) {
            throw new AssertionError(seen + ", not " + wanted);
        }
    }
}
