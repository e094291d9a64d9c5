/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The part of HTTP that a scrape needs: one request on an accepted connection, one answer.
 * RFC 9112.
 */
#ifndef EBB_HTTP_H
#define EBB_HTTP_H

#include <stdbool.h>
#include <stddef.h>

#define HTTP_REQUEST_MOST 8192 /* bytes, its fields included */
#define HTTP_SECONDS 10        /* for request and answer */

enum http_status {
	HTTP_OK = 200,
	HTTP_BAD_REQUEST = 400,
	HTTP_NOT_FOUND = 404,
	HTTP_NOT_ALLOWED = 405,
	HTTP_TOO_LARGE = 431,
	HTTP_FAILED = 500,
	HTTP_VERSION = 505,
};

struct http_request {
	bool head;        /* HEAD: without the body */
	bool openmetrics; /* preferred to other formats */
};

/*
 * Parses @text, a request including its empty line, into @r.  HTTP_OK for GET or HEAD of
 * /metrics.
 */
enum http_status http_judge(const char *text, struct http_request *r);

/*
 * Reads one request from @fd into @text of @size bytes.  HTTP_OK when it is whole,
 * HTTP_TOO_LARGE, HTTP_BAD_REQUEST when it ends before.
 */
enum http_status http_read(int fd, char *text, size_t size);

/* Writes the answer and waits until the peer has received it.  Returns 0 or -errno. */
int http_answer(int fd, enum http_status status, const struct http_request *r, const char *type,
		const char *body, size_t len);

#endif
