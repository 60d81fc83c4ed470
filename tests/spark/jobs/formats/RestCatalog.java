import java.net.InetSocketAddress;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.CatalogUtil;
import org.apache.iceberg.rest.RESTCatalogAdapter;
import org.apache.iceberg.rest.RESTCatalogServlet;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.servlet.ServletContextHandler;
import org.eclipse.jetty.servlet.ServletHolder;

/** Iceberg's REST catalog on a port of this machine: its tables are in a folder, its names in SQLite. */
public class RestCatalog {
  public static void main(String[] arguments) throws Exception {
    String folder = arguments[0];
    var catalog =
        CatalogUtil.buildIcebergCatalog(
            "test",
            Map.of(
                "catalog-impl", "org.apache.iceberg.jdbc.JdbcCatalog",
                "uri", "jdbc:sqlite:" + folder + "/names.db",
                "warehouse", "file://" + folder + "/warehouse",
                "clients", "1"),
            new Configuration());
    var context = new ServletContextHandler(ServletContextHandler.NO_SESSIONS);
    context.addServlet(
        new ServletHolder(new RESTCatalogServlet(new RESTCatalogAdapter(catalog))), "/*");
    var server = new Server(new InetSocketAddress("127.0.0.1", Integer.parseInt(arguments[1])));
    server.setHandler(context);
    server.start();
    System.out.println("ready");
    System.out.flush();
    server.join();
  }
}
