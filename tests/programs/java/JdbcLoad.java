// SPDX-License-Identifier: GPL-2.0-or-later

import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.Random;

/**
 * A database in the memory of this virtual machine under a load of short
 * transactions and reports, all drawn from one seed: two runs print the same.
 */
final class JdbcLoad {
    /** Bytes of a note; with keys and the engine's own, a row takes about twice that. */
    private static final int NOTE = 400;
    private static final int BATCH = 1000;
    /** A report for so many transactions. */
    private static final int REPORT_EVERY = 50;
    private static final long MODULUS = 1_000_000_007L;

    private final Connection connection;
    private final int rows;
    private final Random random = new Random(42);
    private long digest;

    private JdbcLoad(Connection connection, int rows) {
        this.connection = connection;
        this.rows = rows;
    }

    private void digest(long value) {
        digest = (digest * 31 + value) % MODULUS;
    }

    private static String note(int account, int version) {
        return String.format("%010d-%06d-", account, version).repeat(NOTE / 18);
    }

    private void fill() throws SQLException {
        try (Statement s = connection.createStatement()) {
            s.execute("CREATE TABLE account (id INT PRIMARY KEY, branch INT NOT NULL,"
                    + " balance BIGINT NOT NULL, note VARCHAR(" + NOTE + ") NOT NULL)");
        }
        try (PreparedStatement p = connection.prepareStatement(
                "INSERT INTO account VALUES (?, ?, ?, ?)")) {
            for (int i = 0; i < rows; i++) {
                p.setInt(1, i);
                p.setInt(2, i % 97);
                p.setLong(3, 1000);
                p.setString(4, note(i, 0));
                p.addBatch();
                if ((i + 1) % BATCH == 0 || i + 1 == rows) {
                    p.executeBatch();
                    connection.commit();
                }
            }
        }
    }

    /** Moves money between two accounts and rewrites the payer's note. */
    private void transfer(PreparedStatement get, PreparedStatement put, int number)
            throws SQLException {
        int from = random.nextInt(rows);
        int to = random.nextInt(rows);
        long amount = random.nextInt(100);

        if (from == to) {
            return;
        }
        long balance = read(get, from);
        long other = read(get, to);
        write(put, from, balance - amount, number);
        write(put, to, other + amount, number);
        connection.commit();
    }

    private long read(PreparedStatement get, int account) throws SQLException {
        get.setInt(1, account);
        try (ResultSet r = get.executeQuery()) {
            if (!r.next() || !r.getString(2).startsWith(String.format("%010d-", account))) {
                throw new IllegalStateException("account " + account + ": wrong or gone");
            }
            long balance = r.getLong(1);
            digest(balance);
            return balance;
        }
    }

    private void write(PreparedStatement put, int account, long balance, int version)
            throws SQLException {
        put.setLong(1, balance);
        put.setString(2, note(account, version));
        put.setInt(3, account);
        if (put.executeUpdate() != 1) {
            throw new IllegalStateException("account " + account + ": not updated");
        }
    }

    /** A walk over the whole table; money is neither made nor lost. */
    private void report() throws SQLException {
        long total = 0;

        try (Statement s = connection.createStatement();
                ResultSet r = s.executeQuery("SELECT branch, SUM(balance), SUM(LENGTH(note))"
                        + " FROM account GROUP BY branch ORDER BY branch")) {
            while (r.next()) {
                total += r.getLong(2);
                digest(r.getLong(2));
                digest(r.getLong(3));
            }
        }
        connection.commit();
        if (total != 1000L * rows) {
            throw new IllegalStateException("balances add up to " + total);
        }
    }

    private void run(int transactions) throws SQLException {
        try (PreparedStatement get = connection.prepareStatement(
                        "SELECT balance, note FROM account WHERE id = ?");
                PreparedStatement put = connection.prepareStatement(
                        "UPDATE account SET balance = ?, note = ? WHERE id = ?")) {
            for (int i = 1; i <= transactions; i++) {
                transfer(get, put, i % 1_000_000);
                if (i % REPORT_EVERY == 0 || i == transactions) {
                    report();
                }
            }
        }
    }

    public static void main(String[] argv) throws SQLException {
        if (argv.length != 3) {
            System.err.println("usage: JdbcLoad JDBC-URL ROWS TRANSACTIONS");
            System.exit(2);
        }
        try (Connection c = DriverManager.getConnection(argv[0])) {
            JdbcLoad load = new JdbcLoad(c, Integer.parseInt(argv[1]));

            c.setAutoCommit(false);
            load.fill();
            load.run(Integer.parseInt(argv[2]));
            System.out.println("digest " + load.digest);
        }
    }
}
