-- SPDX-License-Identifier: GPL-2.0-or-later
CREATE TABLE orders(id INTEGER PRIMARY KEY, placed INTEGER, city TEXT, customer INTEGER,
                    price REAL, token TEXT);
.mode csv
.import orders.csv orders
SELECT count(*), max(price), min(placed), total(customer) FROM orders;
SELECT city, max(price) FROM orders WHERE customer % 97 = 3 GROUP BY city;
SELECT count(*) FROM orders WHERE substr(token, 1, 3) = 'abc';
SELECT max(price) FROM orders WHERE city = 'Ulm';
SELECT count(*) FROM orders WHERE price > 990;
SELECT min(price), max(placed) FROM orders WHERE city > 'Trier';
