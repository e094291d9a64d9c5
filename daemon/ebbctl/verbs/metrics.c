// SPDX-License-Identifier: GPL-2.0-or-later
/* ebbctl metrics: counters for Prometheus. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ebbctl/live/exposition.h"
#include "ebbctl/live/http.h"
#include "ebbctl/live/snapshot.h"
#include "lib/base/text.h"
#include "lib/base/files.h"
#include "verbs.h"

/* File for the textfile collector of node_exporter. */
#define TEXTFILE "ebb.prom"

struct metrics_options {
	const char *format, *textfile;
	bool http;
};

/* Returns the exposition as a new string. */
static int expose(enum exposition_format format, char **text, size_t *len, struct error *e)
{
	_cleanup_json_ struct json_object *snapshot = NULL;
	int r = snapshot_take(&snapshot, e);
	FILE *f;

	if (r)
		return r;
	*text = NULL;
	f = open_memstream(text, len);
	if (!f)
		return fail(e, ENOMEM, "metrics: out of memory");
	exposition_write(f, snapshot, format);
	return fclose(f) ? fail(e, ENOMEM, "metrics: out of memory") : 0;
}

static int print(enum exposition_format format, struct error *e)
{
	char *text = NULL;
	size_t len = 0;
	int r = expose(format, &text, &len, e);

	if (!r && fwrite(text, 1, len, stdout) != len)
		r = fail(e, errno, "stdout: %m");
	free(text);
	return r;
}

static int write_textfile(const char *dir, struct error *e)
{
	char path[4096], *text = NULL;
	size_t len = 0;
	int r;

	if ((size_t)snprintf(path, sizeof(path), "%s/" TEXTFILE, dir) >= sizeof(path))
		return fail_exit(e, EXIT_USAGE, ENAMETOOLONG, "--textfile: name too long; give a shorter one");
	r = expose(EXPOSITION_PROMETHEUS, &text, &len, e);
	/* node_exporter runs as another user. */
	if (!r)
		r = file_publish(path, text);
	if (r && !e->code)
		fail(e, r, "%s: cannot write: %s; give the directory of node_exporter", path,
		     strerror(-r));
	free(text);
	return r;
}

/* Serves one request on standard input, a connection of a socket unit with Accept=yes. */
static int serve(struct error *e)
{
	char request[HTTP_REQUEST_MOST + 1], *text = NULL;
	enum exposition_format format;
	struct http_request r = { .head = false };
	struct error inner = { 0 };
	enum http_status status;
	size_t len = 0;
	int sent;

	/* A slow client or an unresponsive daemon ends this process. */
	alarm(HTTP_SECONDS);
	signal(SIGPIPE, SIG_IGN);
	status = http_read(STDIN_FILENO, request, sizeof(request));
	if (status == HTTP_OK)
		status = http_judge(request, &r);
	format = r.openmetrics ? EXPOSITION_OPENMETRICS : EXPOSITION_PROMETHEUS;
	if (status == HTTP_OK && expose(format, &text, &len, &inner))
		status = HTTP_FAILED;
	if (status == HTTP_OK)
		sent = http_answer(STDIN_FILENO, status, &r, exposition_type(format), text, len);
	else
		sent = http_answer(STDIN_FILENO, status, &r, "text/plain; charset=utf-8",
				   *inner.text ? inner.text : "see /metrics\n",
				   strlen(*inner.text ? inner.text : "see /metrics\n"));
	free(text);
	if (inner.code)
		return fail_exit(e, inner.exit_status, inner.code, "%s", inner.text);
	return sent ? fail(e, sent, "metrics: answer: %s", strerror(-sent)) : 0;
}

static int run(int argc, char **argv, void *options, struct error *e)
{
	const struct metrics_options *o = options;
	bool plain = !strcmp(o->format, "prometheus");

	if (o->http && o->textfile)
		return fail_exit(e, EXIT_USAGE, EINVAL, "metrics: --http excludes --textfile; drop one");
	if (o->http)
		return serve(e);
	if (o->textfile)
		return write_textfile(o->textfile, e);
	return print(plain ? EXPOSITION_PROMETHEUS : EXPOSITION_OPENMETRICS, e);
}

static const struct option_spec specs[] = {
	OPTION(metrics_options, format, "format", OPTION_STRING, "openmetrics|prometheus",
	       .help = "output format [openmetrics]"),
	OPTION(metrics_options, textfile, "textfile", OPTION_STRING, "DIR",
	       .help = "write DIR/" TEXTFILE " for node_exporter, atomically"),
	OPTION(metrics_options, http, "http", OPTION_FLAG, NULL,
	       .help = "answer one HTTP request on standard input, a connected socket"),
	OPTIONS_END
};

static const struct metrics_options defaults = { .format = "openmetrics" };

const struct command command_metrics = {
	.object = "metrics", .help = "Print the main counters for Prometheus",
	.example = "  ebbctl metrics --textfile /var/lib/prometheus/node-exporter\n",
	.options = specs, .options_size = sizeof(struct metrics_options), .defaults = &defaults,
	.run = run,
};
