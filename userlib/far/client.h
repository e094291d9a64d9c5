/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * A connection to a donor for far memory.  Requests are pushed, and settled together: one round
 * trip.  The donor replies in their order.  One thread at a time.
 */
#ifndef EBBFAR_CLIENT_H
#define EBBFAR_CLIENT_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/base/error.h"
#include "lib/rules/far_step.h"
#include "lib/wire/stream.h"
#include "lib/wire/tls.h"
#include "lib/wire/wire_far.h"

#define CLIENT_REQUESTS 64u
#define CLIENT_WORDS 16u

/* A reply that is to come. */
struct client_reply {
	uint8_t op;
	bool any;        /* LIST: up to .length bytes, and *.got is how many */
	bool words;      /* the payload is words, which are stored in host order */
	uint64_t tag;
	uint64_t entry;  /* stream_tx_next() of the request */
	uint32_t length; /* of its payload */
	uint32_t *got;
	void *to;
	int *fd;         /* ARENA over a unix socket */
};

struct client {
	int fd;           /* -1 = closed */
	int lost;         /* -errno of all that follows; 0 = none */
	uint16_t refusal; /* status of the first refusal since the last client_settle() */
	uint16_t status;  /* that of the last client_settle() */
	bool local;
	uint32_t timeout; /* ms */
	uint64_t tag;
	struct stream_rx rx;
	struct stream_tx tx;
	struct tls tls;
	struct tls_context *context;
	struct wire_donor donor; /* its reply to HELLO */
	struct client_reply replies[CLIENT_REQUESTS];
	uint32_t first, count;
	struct wire_far_word words[CLIENT_WORDS]; /* that the donor passed on */
	uint32_t first_word, word_count;
	uint8_t swaps[2][WIRE_SMALL]; /* payloads of CAS */
	uint8_t small[WIRE_SMALL];
};

/*
 * Connects to @donor, with the key file @key or NULL, and shakes hands.  Returns 0 or -errno with a
 * text; then the client is closed.
 */
int client_open(struct client *c, const char *donor, const char *key, uint32_t timeout,
		struct error *e);
void client_close(struct client *c);

/*
 * Queues request @f; @payload, if it is longer than STREAM_INLINE, and @reply's memory stay until
 * client_settle().  Sets tag and entry of @reply.
 */
int client_push(struct client *c, struct wire_frame f, const void *payload,
		struct client_reply reply);
/* Waits for all replies.  Returns 0, or -errno of the first refusal or of the connection. */
int client_settle(struct client *c);
/* Receives what has arrived, without waiting.  Returns 0 or -errno. */
int client_receive(struct client *c);

/* Executes @verb on an arena; does not wait for FAR_POST.  Returns 0 or -errno. */
int client_execute(struct client *c, uint32_t arena, const struct far_verb *verb);

/* Returns the -errno that stands for a status of a reply. */
int client_errno(uint16_t status);

#endif
