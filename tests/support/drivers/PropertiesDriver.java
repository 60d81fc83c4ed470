import java.io.FileReader;
import java.util.Properties;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;

/** Prints the topics of the cluster that a file of Kafka's settings leads to. */
public class PropertiesDriver {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        try (FileReader file = new FileReader(arguments[0])) {
            settings.load(file);
        }
        try (Admin admin = Admin.create(settings)) {
            for (String topic : admin.listTopics().names().get(30, TimeUnit.SECONDS)) {
                System.out.println(topic);
            }
        }
    }
}
