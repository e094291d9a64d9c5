-- SPDX-License-Identifier: GPL-2.0-or-later
CREATE TABLE orders(id INTEGER PRIMARY KEY, placed INTEGER, city TEXT, customer INTEGER,
                    price REAL, token TEXT);
.mode csv
.import orders.csv orders
-- A multiplicative generator visits ids in no order that a page could tell.
WITH RECURSIVE pick(n, id) AS (
	SELECT 0, 12345 UNION ALL
	SELECT n + 1, (id * 16807) % 2147483647 FROM pick WHERE n < 150000)
SELECT count(*), total(price) FROM pick JOIN orders ON orders.id = pick.id % 1200000;
