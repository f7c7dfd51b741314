import com.alibaba.fastjson2.JSON;
import com.alibaba.otter.canal.protocol.CanalEntry;
import com.alibaba.otter.canal.protocol.CanalPacket;
import com.google.protobuf.ByteString;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Reads packets, each a line of hexadecimal digits, by Canal's own classes; prints a line of JSON for each entry. */
public final class CanalPackets {
    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            CanalPacket.Packet packet = CanalPacket.Packet.parseFrom(HexFormat.of().parseHex(line));
            CanalPacket.Messages messages = CanalPacket.Messages.parseFrom(packet.getBody());
            for (ByteString message : messages.getMessagesList()) {
                Map<String, Object> found = entry(CanalEntry.Entry.parseFrom(message));
                found.put("packet", packet.getType().name() + " " + packet.getVersion());
                out.println(JSON.toJSONString(found, com.alibaba.fastjson2.JSONWriter.Feature.WriteNulls));
            }
        }
    }

    private static Map<String, Object> entry(CanalEntry.Entry entry) throws Exception {
        CanalEntry.Header header = entry.getHeader();
        CanalEntry.RowChange change = CanalEntry.RowChange.parseFrom(entry.getStoreValue());
        Map<String, Object> found = new LinkedHashMap<>();
        found.put("entryType", entry.getEntryType().name());
        found.put("version", header.getVersion());
        found.put("encoding", header.getServerenCode());
        found.put("executeTime", header.getExecuteTime());
        found.put("sourceType", header.getSourceType().name());
        found.put("schemaName", header.getSchemaName());
        found.put("tableName", header.getTableName());
        found.put("eventType", header.getEventType().name());
        found.put("rowEventType", change.getEventType().name());
        found.put("isDdl", change.getIsDdl());
        found.put("sql", change.getSql());
        found.put("ddlSchemaName", change.getDdlSchemaName());
        List<Object> rows = new ArrayList<>();
        for (CanalEntry.RowData row : change.getRowDatasList()) {
            rows.add(List.of(columns(row.getBeforeColumnsList()), columns(row.getAfterColumnsList())));
        }
        found.put("rows", rows);
        return found;
    }

    private static List<Object> columns(List<CanalEntry.Column> columns) {
        List<Object> found = new ArrayList<>();
        for (CanalEntry.Column column : columns) {
            Map<String, Object> one = new LinkedHashMap<>();
            one.put("name", column.getName());
            one.put("sqlType", column.getSqlType());
            one.put("mysqlType", column.getMysqlType());
            one.put("isKey", column.getIsKey());
            one.put("updated", column.getUpdated());
            one.put("value", column.getIsNull() ? null : column.getValue());
            found.add(one);
        }
        return found;
    }
}
