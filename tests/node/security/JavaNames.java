import java.io.ByteArrayInputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.cert.CertificateFactory;
import java.security.cert.X509Certificate;
import java.util.Base64;
import org.apache.kafka.common.security.ssl.SslPrincipalMapper;

/** Answers each line of a file in base64: «name DER» or «rule RULES NAME»; «-» where Kafka refuses. */
public class JavaNames {
    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        for (String line : Files.readAllLines(Path.of(arguments[0]))) {
            String[] parts = line.split(" ", -1);
            String answer = parts[0].equals("name") ? name(parts[1]) : rule(parts[1], parts[2]);
            out.println(answer == null ? "-" : "=" + encode(answer));
        }
        out.flush();
    }

    private static String name(String der) throws Exception {
        ByteArrayInputStream in = new ByteArrayInputStream(Base64.getDecoder().decode(der));
        CertificateFactory factory = CertificateFactory.getInstance("X.509");
        return ((X509Certificate) factory.generateCertificate(in)).getSubjectX500Principal().getName();
    }

    private static String rule(String rules, String name) {
        try {
            return SslPrincipalMapper.fromRules(decode(rules)).getName(decode(name));
        } catch (Exception refused) {
            return null;
        }
    }

    private static String decode(String text) {
        return new String(Base64.getDecoder().decode(text), StandardCharsets.UTF_8);
    }

    private static String encode(String text) {
        return Base64.getEncoder().encodeToString(text.getBytes(StandardCharsets.UTF_8));
    }
}
