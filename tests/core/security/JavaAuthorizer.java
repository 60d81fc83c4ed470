import java.io.PrintStream;
import java.net.InetAddress;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import org.apache.kafka.common.Endpoint;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.acl.AclBinding;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.acl.AccessControlEntryFilter;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.metrics.internals.PluginMetricsImpl;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourcePatternFilter;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.security.auth.SecurityProtocol;
import org.apache.kafka.metadata.authorizer.StandardAcl;
import org.apache.kafka.metadata.authorizer.StandardAuthorizer;
import org.apache.kafka.server.authorizer.Action;
import org.apache.kafka.server.authorizer.AuthorizableRequestContext;
import org.apache.kafka.server.authorizer.AuthorizationResult;

/**
 * Kafka's own authorizer. Lines of tab-separated fields: «new SUPER_USERS ALLOWS», «acl …», then
 * «ask …», «any …» and «find …», each of which is answered by a line.
 */
public class JavaAuthorizer {
    private static final Map<Uuid, StandardAcl> acls = new HashMap<>();
    private static Map<String, String> settings = Map.of();
    private static StandardAuthorizer authorizer;

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, false);
        for (String line : Files.readAllLines(Path.of(arguments[0]))) {
            String[] f = line.split("\t", -1);
            switch (f[0]) {
                case "new" -> {
                    acls.clear();
                    authorizer = null;
                    settings = Map.of("super.users", f[1], "allow.everyone.if.no.acl.found", f[2]);
                }
                case "acl" -> acls.put(Uuid.randomUuid(), new StandardAcl(
                    type(f[1]), f[3], pattern(f[2]), f[4], f[5], operation(f[6]), permission(f[7])));
                case "ask" -> out.println(loaded().authorize(client(f[4], f[5]), List.of(new Action(
                    operation(f[1]), new ResourcePattern(type(f[2]), f[3], PatternType.LITERAL), 1, false, false)))
                    .get(0) == AuthorizationResult.ALLOWED ? 1 : 0);
                case "any" -> out.println(loaded().authorizeByResourceType(
                    client(f[3], f[4]), operation(f[1]), type(f[2])) == AuthorizationResult.ALLOWED ? 1 : 0);
                case "find" -> {
                    int count = 0;
                    for (AclBinding found : loaded().acls(new AclBindingFilter(
                        new ResourcePatternFilter(type(f[1]), orNull(f[3]), pattern(f[2])),
                        new AccessControlEntryFilter(
                            orNull(f[4]), orNull(f[5]), operation(f[6]), permission(f[7]))))) {
                        count++;
                    }
                    out.println(count);
                }
                default -> throw new IllegalArgumentException(line);
            }
        }
        out.flush();
    }

    private static StandardAuthorizer loaded() {
        if (authorizer == null) {
            authorizer = new StandardAuthorizer();
            authorizer.withPluginMetrics(new PluginMetricsImpl(new Metrics(), Map.of()));
            authorizer.configure(settings);
            authorizer.loadSnapshot(acls);
            authorizer.completeInitialLoad();
        }
        return authorizer;
    }

    private static String orNull(String text) {
        return text.isEmpty() ? null : text;
    }

    private static ResourceType type(String code) {
        return ResourceType.fromCode(Byte.parseByte(code));
    }

    private static PatternType pattern(String code) {
        return PatternType.fromCode(Byte.parseByte(code));
    }

    private static AclOperation operation(String code) {
        return AclOperation.fromCode(Byte.parseByte(code));
    }

    private static AclPermissionType permission(String code) {
        return AclPermissionType.fromCode(Byte.parseByte(code));
    }

    private static AuthorizableRequestContext client(String user, String host) throws Exception {
        InetAddress address = InetAddress.getByName(host);
        return new AuthorizableRequestContext() {
            @Override public String listenerName() { return "L"; }
            @Override public SecurityProtocol securityProtocol() { return SecurityProtocol.PLAINTEXT; }
            @Override public KafkaPrincipal principal() { return new KafkaPrincipal("User", user); }
            @Override public InetAddress clientAddress() { return address; }
            @Override public int requestType() { return 0; }
            @Override public int requestVersion() { return 0; }
            @Override public String clientId() { return ""; }
            @Override public int correlationId() { return 0; }
        };
    }
}
