// SPDX-License-Identifier: GPL-2.0-or-later
#include <arpa/inet.h>
#include <curl/curl.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "etcd.h"
#include "lib/base/cleanup.h"

static void free_url(CURLU **u) { curl_url_cleanup(*u); }
static void free_part(char **p) { curl_free(*p); }

#define _cleanup_part_ _cleanup_(free_part)

void etcd_config_defaults(struct etcd_config *c)
{
	*c = (struct etcd_config){ .prefix = ETCD_PREFIX };
}

/* Judges the text only: a name may resolve to another address tomorrow. */
static bool is_loopback(const char *host)
{
	struct in6_addr six;
	struct in_addr four;
	char bare[64];
	size_t n = strlen(host);

	/* libcurl (7.78) always resolves this name to loopback. */
	if (!strcmp(host, "localhost"))
		return true;
	if (inet_pton(AF_INET, host, &four) == 1)
		return ntohl(four.s_addr) >> 24 == 127;
	if (n < 3 || n >= sizeof(bare) || host[0] != '[')
		return false;
	snprintf(bare, sizeof(bare), "%.*s", (int)n - 2, host + 1);
	return inet_pton(AF_INET6, bare, &six) == 1 && IN6_IS_ADDR_LOOPBACK(&six);
}

static int refuse(const char *what, const char *url, const char *cause, struct error *e)
{
	return fail_exit(e, EXIT_USAGE, EINVAL, "%s: \"%.128s\": %s", what, url, cause);
}

static int check_url(const char *url, const char *what, struct error *e)
{
	_cleanup_(free_url) CURLU *u = curl_url();
	_cleanup_part_ char *scheme = NULL, *host = NULL, *path = NULL, *part = NULL;

	if (!u)
		return fail(e, ENOMEM, "%s: out of memory", what);
	if (curl_url_set(u, CURLUPART_URL, url, CURLU_NON_SUPPORT_SCHEME) ||
	    curl_url_get(u, CURLUPART_SCHEME, &scheme, 0) ||
	    curl_url_get(u, CURLUPART_HOST, &host, 0) || curl_url_get(u, CURLUPART_PATH, &path, 0))
		return refuse(what, url, "no URL; give https://HOST:2379", e);
	if (strcmp(scheme, "https") && strcmp(scheme, "http"))
		return refuse(what, url, "etcd requires HTTPS; give https://HOST:2379", e);
	if (!strcmp(scheme, "http") && !is_loopback(host))
		return refuse(what, url,
			      "http:// is for loopback only; use https://",
			      e);
	if (!curl_url_get(u, CURLUPART_USER, &part, 0))
		return refuse(what, url,
			      "user in URL would appear in logs; give user and password file separately",
			      e);
	if (strcmp(path, "/") || !curl_url_get(u, CURLUPART_QUERY, &part, 0) ||
	    !curl_url_get(u, CURLUPART_FRAGMENT, &part, 0))
		return refuse(what, url, "more than host and port; drop the rest", e);
	return 0;
}

int etcd_config_add(struct etcd_config *c, const char *urls, const char *what, struct error *e)
{
	const char *p = urls;
	int r;

	while (*(p += strspn(p, ", \t"))) {
		size_t n = strcspn(p, ", \t");
		char *to = c->endpoint[c->endpoints];

		if (c->endpoints == ETCD_ENDPOINTS)
			return fail_exit(e, EXIT_USAGE, E2BIG, "%s: more than %d URLs; drop some",
					 what, ETCD_ENDPOINTS);
		if (n >= ETCD_URL_MAX)
			return refuse(what, p, "too long for a URL", e);
		memcpy(to, p, n);
		to[n] = '\0';
		r = check_url(to, what, e);
		if (r)
			return r;
		if (to[n - 1] == '/')
			to[n - 1] = '\0';
		c->endpoints++;
		p += n;
	}
	return c->endpoints ? 0 : refuse(what, urls, "no URL; give https://HOST:2379", e);
}

static int check_file(const char *path, const char *what, mode_t forbidden, struct error *e)
{
	struct stat st;

	if (!*path)
		return 0;
	if (stat(path, &st) < 0 || access(path, R_OK) < 0)
		return fail_exit(e, EXIT_USAGE, errno, "etcd %s %s: %s", what, path, strerror(errno));
	if (!S_ISREG(st.st_mode))
		return fail_exit(e, EXIT_USAGE, EINVAL, "etcd %s %s: not a file", what, path);
	if (st.st_mode & forbidden)
		return fail_exit(e, EXIT_USAGE, EACCES,
				 "etcd %s %s: readable by other users (mode %03o); chmod 600 it", what, path,
				 st.st_mode & 0777);
	return 0;
}

int etcd_config_check(const struct etcd_config *c, struct error *e)
{
	size_t n = strlen(c->prefix);
	int r;

	if (n < 2 || c->prefix[0] != '/' || c->prefix[n - 1] != '/')
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "etcd prefix \"%s\": must begin and end with /; give " ETCD_PREFIX,
				 c->prefix);
	if (!*c->cert != !*c->key)
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "etcd certificate: requires certificate and key; give both");
	if (!*c->user != !*c->password_file)
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "etcd user: requires name and password file; give both");
	r = check_file(c->ca, "CA", 0, e);
	if (!r)
		r = check_file(c->cert, "certificate", 0, e);
	if (!r)
		r = check_file(c->key, "key", 077, e);
	return r ? r : check_file(c->password_file, "password file", 077, e);
}
