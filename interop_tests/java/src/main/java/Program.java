/** Work that ends its process when it is done, whatever threads a client still has. */
final class Program {
    interface Work {
        void run(String[] arguments) throws Exception;
    }

    static void run(Work work, String[] arguments) {
        try {
            work.run(arguments);
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1);
        }
        System.exit(0);
    }
}
