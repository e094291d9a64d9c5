// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "http.h"

#define BLANKS " \t"

static const char *text_of(enum http_status status)
{
	switch (status) {
	case HTTP_OK: return "OK";
	case HTTP_NOT_FOUND: return "Not Found";
	case HTTP_NOT_ALLOWED: return "Method Not Allowed";
	case HTTP_TOO_LARGE: return "Request Header Fields Too Large";
	case HTTP_FAILED: return "Internal Server Error";
	case HTTP_VERSION: return "HTTP Version Not Supported";
	default: return "Bad Request";
	}
}

/* Returns whether the @len bytes at @text equal @word. */
static bool is_word(const char *text, size_t len, const char *word)
{
	return strlen(word) == len && !memcmp(text, word, len);
}

/*
 * Returns whether Accept names OpenMetrics before the Prometheus format, which clients list by
 * preference.  Ignores a weight of 0.
 */
static bool likes_openmetrics(const char *value, size_t len)
{
	char text[1024];
	const char *open, *plain;

	snprintf(text, sizeof(text), "%.*s", (int)(len < sizeof(text) ? len : sizeof(text) - 1), value);
	open = strcasestr(text, "application/openmetrics-text");
	plain = strcasestr(text, "text/plain");
	return open && (!plain || open < plain);
}

static enum http_status judge_line(const char *line, size_t len, struct http_request *r)
{
	size_t method = strcspn(line, " "), target, query;
	const char *path = line + method + 1, *version;

	if (method >= len)
		return HTTP_BAD_REQUEST;
	target = strcspn(path, " \r\n");
	version = path + target + 1;
	if (!target || version >= line + len || path[target] != ' ')
		return HTTP_BAD_REQUEST;
	if (strncmp(version, "HTTP/", 5) || strcspn(version, "\r\n") != strlen("HTTP/1.1"))
		return HTTP_BAD_REQUEST;
	if (strncmp(version, "HTTP/1.", 7))
		return HTTP_VERSION;
	r->head = is_word(line, method, "HEAD");
	if (!r->head && !is_word(line, method, "GET"))
		return HTTP_NOT_ALLOWED;
	query = strcspn(path, "?");
	return is_word(path, query < target ? query : target, "/metrics") ? HTTP_OK : HTTP_NOT_FOUND;
}

enum http_status http_judge(const char *text, struct http_request *r)
{
	size_t len = strcspn(text, "\n");
	enum http_status status;

	*r = (struct http_request){ .head = false };
	if (!text[len])
		return HTTP_BAD_REQUEST;
	status = judge_line(text, len, r);
	for (const char *line = text + len + 1; status == HTTP_OK && *line; line += len + 1) {
		size_t name = strcspn(line, ":\r\n");

		len = strcspn(line, "\n");
		if (!line[len])
			return HTTP_BAD_REQUEST;
		if (*line == '\r' || *line == '\n')
			break;
		if (!name || line[name] != ':' || strcspn(line, BLANKS) < name)
			return HTTP_BAD_REQUEST;
		if (name == strlen("Accept") && !strncasecmp(line, "Accept", name))
			r->openmetrics = likes_openmetrics(line + name + 1, len - name - 1);
	}
	return status;
}

enum http_status http_read(int fd, char *text, size_t size)
{
	size_t len = 0;

	for (;;) {
		ssize_t n = read(fd, text + len, size - 1 - len);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return HTTP_BAD_REQUEST;
		/* A request with NUL is not text. */
		if (memchr(text + len, '\0', (size_t)n))
			return HTTP_BAD_REQUEST;
		len += (size_t)n;
		text[len] = '\0';
		if (strstr(text, "\r\n\r\n") || strstr(text, "\n\n"))
			return HTTP_OK;
		if (len == size - 1)
			return HTTP_TOO_LARGE;
	}
}

static int write_all(int fd, const char *text, size_t len)
{
	while (len) {
		ssize_t n = write(fd, text, len);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		text += n;
		len -= (size_t)n;
	}
	return 0;
}

int http_answer(int fd, enum http_status status, const struct http_request *r, const char *type,
		const char *body, size_t len)
{
	char head[512], rest[1024];
	int r2;

	snprintf(head, sizeof(head),
		 "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n%s"
		 "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n",
		 status, text_of(status), type, len,
		 status == HTTP_NOT_ALLOWED ? "Allow: GET, HEAD\r\n" : "");
	r2 = write_all(fd, head, strlen(head));
	if (!r2 && !r->head)
		r2 = write_all(fd, body, len);
	/* Closing with unread input would discard the answer. */
	if (!r2 && shutdown(fd, SHUT_WR) == 0)
		for (int i = 0; i < 64 && read(fd, rest, sizeof(rest)) > 0; i++)
			;
	return r2;
}
