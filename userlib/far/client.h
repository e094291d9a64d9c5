/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * A connection to a donor for far memory.  Requests are pushed, and settled together: one round
 * trip.  The donor replies in their order.  One thread at a time.
 *
 * A connection of a member that is cut is made again within the donor's grace period.  The requests
 * without a reply are repeated with their tags; the donor executes those that it has not executed,
 * and replies to the others as it did.  So each request takes effect once, and has one result, or
 * the client ends: all further calls return client.lost, and client.why says the reason.
 */
#ifndef EBBFAR_CLIENT_H
#define EBBFAR_CLIENT_H

#include <poll.h>
#include <stdbool.h>
#include <stdint.h>

#include "lib/base/error.h"
#include "lib/rules/far_step.h"
#include "lib/wire/address.h"
#include "lib/wire/key.h"
#include "lib/wire/stream.h"
#include "lib/wire/tls.h"
#include "lib/wire/wire_far.h"

/* The donor has the results of as many. */
#define CLIENT_REQUESTS WIRE_FAR_WINDOW
#define CLIENT_WORDS 16u

/* What is done with a reply. */
struct client_reply {
	bool any;        /* LIST: up to .length bytes, and *.got is how many */
	bool words;      /* the payload is words, which are stored in host order */
	uint32_t length; /* of its payload */
	uint32_t *got;
	void *to;
	int *fd;         /* ARENA over a unix socket */
	/*
	 * Called once, with 0 or -errno: of this request, or of the client's end.  It does not call
	 * the client.  NULL: client_settle() returns the first refusal.
	 */
	void (*done)(void *data, int error);
	void *data;
};

/* A request without a reply. */
struct client_request {
	struct wire_frame f;
	const void *payload;    /* longer than STREAM_INLINE; or NULL */
	uint8_t bytes[STREAM_INLINE];
	uint64_t entry;         /* stream_tx_next() of the request on this connection */
	struct client_reply reply;
};

enum client_state {
	CLIENT_CUT,        /* the next attempt to connect begins at .retry_at */
	CLIENT_CONNECTING,
	CLIENT_SECURING,
	CLIENT_GREETING,   /* its HELLO has no reply yet */
	CLIENT_UP,
	CLIENT_STATES
};

struct client;

/* How a client connects: connect.c. */
struct client_connector {
	/* Goes on to connect again: the connection is up, the client has ended, or it waits. */
	void (*resume)(struct client *c);
	/* The connection has failed by @error: it is made again, or the client ends. */
	void (*cut)(struct client *c, int error);
};

/* Times are in ms, of now_ms(). */
struct client {
	const struct client_connector *connector;
	int fd;            /* -1 = none */
	int lost;          /* -errno of all that follows; 0 = none */
	char why[384];     /* the reason: "THING: CAUSE; REMEDY" */
	enum client_state state;
	uint16_t refusal;  /* status of the first refusal since the last client_settle() */
	uint16_t status;   /* that of the last client_settle() */
	bool local;
	bool keeps;        /* the donor keeps the member for its grace period */
	bool jobs;         /* it asks for jobs (jobs.h) */
	bool resumes;      /* there is a member to resume */
	uint32_t timeout;  /* longest silence while a request waits */
	uint32_t patience; /* how long a cut connection is tried to be made again */
	uint32_t grace;    /* of the donor */
	uint64_t tag;
	uint64_t number;   /* of this client at the donor */
	uint64_t identity; /* of the donor */
	struct address address;
	char key_name[KEY_DONOR]; /* the donor's, for a derived key; "" = the shared key */
	struct stream_rx rx;
	struct stream_tx tx;
	struct tls tls;
	struct tls_context *context; /* NULL = without TLS */
	/* Of an attempt to connect. */
	bool replied;      /* to HELLO, with .status and .told */
	bool asks;         /* there is nothing to resume: HELLO asks for the donor's identity */
	uint64_t hello_tag, hello_entry;
	struct wire_donor told;
	int64_t attempt_end, retry_at, give_up_at;
	uint32_t backoff;
	bool stalled;      /* the connection repeated requests, and none of them has a reply */
	int64_t driven_at; /* last client_go_on() */
	int64_t heard_at;  /* bytes moved last, or a request began to wait */
	int64_t reply_at;  /* last reply, or a request began to wait */
	uint64_t moved;    /* bytes at .heard_at */
	struct client_request requests[CLIENT_REQUESTS];
	uint32_t first, count;
	struct wire_far_word words[CLIENT_WORDS]; /* that the donor passed on */
	uint32_t first_word, word_count;
	uint64_t last_word; /* number of the last one */
	uint8_t swaps[2][WIRE_SMALL]; /* payloads of CAS */
	uint8_t small[WIRE_SMALL];
};

/*
 * Connects to @donor, with the key file @key or NULL, and shakes hands; @keeps: the donor shall
 * keep a member whose connection is cut.  Returns 0 or -errno with a text; then the client is
 * closed.
 */
int client_open(struct client *c, const char *donor, const char *key, uint32_t timeout, bool keeps,
		struct error *e);
/* As client_open(), and asks for jobs. */
int client_open_for_jobs(struct client *c, const char *donor, const char *key, uint32_t timeout,
			 bool keeps, struct error *e);
/* From now on a cut connection is made again, tried for @patience ms; 0 = the grace period. */
void client_resumes(struct client *c, uint32_t patience);
/* Says that the member leaves, and waits up to the time-out for the reply. */
void client_bye(struct client *c);
void client_close(struct client *c);

/*
 * Queues request @f; @payload, if it is longer than STREAM_INLINE, and @reply's memory stay until
 * the reply.
 */
int client_push(struct client *c, struct wire_frame f, const void *payload,
		struct client_reply reply);
/* Waits for all replies.  Returns 0, or -errno of the first refusal or of the client's end. */
int client_settle(struct client *c);

/*
 * Sends and receives what can be without waiting, and goes on to resume.  Returns whether more can
 * be done at once.
 */
bool client_go_on(struct client *c);
/* Sets *@p to what the client waits for; returns for how many ms at most. */
int client_poll(const struct client *c, struct pollfd *p);
/* Waits for that, up to @most_ms. */
void client_pause(const struct client *c, int most_ms);

/* Executes @verb on an arena; does not wait for FAR_POST.  Returns 0 or -errno. */
int client_execute(struct client *c, uint32_t arena, const struct far_verb *verb);

/* Returns the -errno that stands for a status of a reply. */
int client_errno(uint16_t status);

/* For connect.c: */

extern const struct stream_rx_ops client_rx_ops;
/* Ends the client because of @error; the text says why, and what to do. */
void client_end(struct client *c, int error, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

#endif
