import java.io.PrintStream;
import java.net.InetAddress;
import java.nio.file.Files;
import java.nio.file.Path;
import kafka.server.ClientQuotaManager;
import kafka.server.ControllerMutationQuotaManager;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.metrics.Quota;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.network.Session;
import org.apache.kafka.server.config.ClientQuotaManagerConfig;
import org.apache.kafka.server.quota.ClientQuotaEntity;
import org.apache.kafka.server.quota.QuotaType;
import scala.Option;

/**
 * Kafka's own quotas. Lines of tab-separated fields: «new WINDOWS SECONDS», «set USER CLIENT RATE» (* is the
 * default, - is not named, and a rate of - removes), then «add USER CLIENT AMOUNT MS» and «take …», each of
 * which is answered by a throttle time.
 */
public class JavaQuotas {
    private static ClientQuotaManager rates;
    private static ControllerMutationQuotaManager buckets;

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, false);
        for (String line : Files.readAllLines(Path.of(arguments[0]))) {
            String[] f = line.split("\t", -1);
            switch (f[0]) {
                case "new" -> {
                    if (rates != null) {
                        rates.initiateShutdown();
                        buckets.initiateShutdown();
                    }
                    var config = new ClientQuotaManagerConfig(Integer.parseInt(f[1]), Integer.parseInt(f[2]));
                    rates = new ClientQuotaManager(
                        config, new Metrics(), QuotaType.PRODUCE, Time.SYSTEM, "", Option.empty());
                    buckets = new ControllerMutationQuotaManager(
                        config, new Metrics(), Time.SYSTEM, "", Option.empty());
                }
                case "set" -> {
                    Option<Quota> quota = f[3].equals("-") ? Option.empty()
                        : Option.apply(Quota.upperBound(Double.parseDouble(f[3])));
                    for (ClientQuotaManager one : new ClientQuotaManager[] {rates, buckets}) {
                        one.updateQuota(user(f[1]), client(f[2]), quota);
                    }
                }
                case "add" -> out.println(throttle(rates, f));
                case "take" -> out.println(throttle(buckets, f));
                default -> throw new IllegalArgumentException(line);
            }
        }
        out.flush();
        System.exit(0);
    }

    private static int throttle(ClientQuotaManager manager, String[] f) throws Exception {
        var session = new Session(
            new KafkaPrincipal(KafkaPrincipal.USER_TYPE, f[1]), InetAddress.getLoopbackAddress());
        return manager.recordAndGetThrottleTimeMs(
            session, f[2], Double.parseDouble(f[3]), Long.parseLong(f[4]));
    }

    private static Option<ClientQuotaManager.BaseUserEntity> user(String name) {
        return switch (name) {
            case "-" -> Option.empty();
            case "*" -> Option.apply(ClientQuotaManager.DefaultUserEntity$.MODULE$);
            default -> Option.apply(new ClientQuotaManager.UserEntity(name));
        };
    }

    private static Option<ClientQuotaEntity.ConfigEntity> client(String name) {
        return switch (name) {
            case "-" -> Option.empty();
            case "*" -> Option.apply(ClientQuotaManager.DefaultClientIdEntity$.MODULE$);
            default -> Option.apply(new ClientQuotaManager.ClientIdEntity(name));
        };
    }
}
