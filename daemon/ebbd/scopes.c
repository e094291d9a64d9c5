// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "lib/base/log.h"
#include "lib/control/device.h"
#include "lib/discovery/thread.h"
#include "lib/host/scope.h"
#include "scopes.h"

#define AGAIN_MS 1000 /* while ebbctl applies a scope, or the event loop is busy */

struct scopes {
	uint64_t seen;          /* changes at the last scopes_follow() */
	pthread_t thread;
	int wake;               /* eventfd: a change, or .stop */
	atomic_bool stop;
};

/* Sets *@again if it can succeed a moment later. */
static int apply_one(const struct device_record *d, void *again)
{
	struct error e = { 0 };
	int r;

	if (strcmp(d->scope, "attached"))
		return 0;
	r = scope_apply(d->name, NULL, SCOPE_DAEMON, &e);
	if (r == -EAGAIN || (r && e.exit_status == EXIT_NO_DAEMON))
		*(bool *)again = true;
	else if (r)
		log_warn("%s", e.text);
	return 0;
}

static void *run(void *data)
{
	struct scopes *s = data;
	bool again = false;

	prctl(PR_SET_NAME, "ebbd-scopes");
	for (;;) {
		struct pollfd wake = { .fd = s->wake, .events = POLLIN };
		eventfd_t n;

		/* Non-blocking: nothing is read after AGAIN_MS. */
		poll(&wake, 1, again ? AGAIN_MS : -1);
		eventfd_read(s->wake, &n);
		if (atomic_load(&s->stop))
			return NULL;
		again = false;
		device_record_each(apply_one, &again);
	}
}

void scopes_wake(struct scopes *s)
{
	if (eventfd_write(s->wake, 1))
		log_err("scope: cannot wake its thread: %m");
}

void scopes_follow(struct scopes *s, uint64_t changes)
{
	if (changes != s->seen)
		scopes_wake(s);
	s->seen = changes;
}

int scopes_start(struct scopes **out, struct error *e)
{
	struct scopes *s = calloc(1, sizeof(*s));
	int r;

	if (!s)
		return fail(e, ENOMEM, "scope: out of memory");
	/* A previous ebbd may have ended before it applied a change. */
	s->wake = eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK);
	r = s->wake < 0 ? fail(e, errno, "scope: eventfd: %m") :
			  thread_start(&s->thread, run, s, e);
	if (r) {
		if (s->wake >= 0)
			close(s->wake);
		free(s);
		return r;
	}
	*out = s;
	return 0;
}

void scopes_stop(struct scopes **out)
{
	struct scopes *s = *out;

	if (!s)
		return;
	atomic_store(&s->stop, true);
	scopes_wake(s);
	pthread_join(s->thread, NULL);
	close(s->wake);
	free(s);
	*out = NULL;
}
