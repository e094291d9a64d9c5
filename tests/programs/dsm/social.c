// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Posts of a social network.  Users are at home at a worker.  In each of @rounds rounds each worker
 * composes posts of its users, a text and an image, and tells the homes of their followers; then
 * users read what those they follow have posted: each text, and one image of four.  Posts of a
 * round are deleted at its end.
 */
#include <stdlib.h>
#include <string.h>

#include "bench.h"

enum { USERS = 960, FOLLOWS = 8, POSTS = 240, TEXT = 512, IMAGE = 8192, KIND_POST = KIND_PROGRAM,
       KIND_AUTHORS };

struct post {
	uint32_t author;
	struct object part[2]; /* text and image */
};

struct network {
	uint32_t follows[USERS][FOLLOWS];
	uint32_t homes[USERS]; /* of the followers, a bit each */
	struct post posts[POSTS];
	uint32_t known; /* posts of this round here: own ones and those sent */
};

/* Some users have many followers. */
static uint32_t followed_by(uint32_t user, uint32_t k)
{
	uint64_t x = hash((uint64_t)user << 8 | k) % (USERS * 16u);

	return (uint32_t)(x * x / ((uint64_t)USERS * 256));
}

static void know_all(struct worker *w, struct network *n)
{
	for (uint32_t u = 0; u < USERS; u++)
		for (uint32_t k = 0; k < FOLLOWS; k++) {
			n->follows[u][k] = followed_by(u, k);
			n->homes[n->follows[u][k]] |= 1u << u % w->workers;
		}
}

static uint32_t author_of(uint64_t round, uint32_t post)
{
	return (uint32_t)(hash(round << 16 | post) % USERS);
}

static void compose(struct worker *w, struct network *n, uint64_t round, uint32_t number)
{
	struct post *p = &n->posts[n->known++];
	uint64_t words[IMAGE / 8];

	p->author = author_of(round, number);
	for (uint32_t i = 0; i < IMAGE / 8; i++)
		words[i] = hash(round << 40 | (uint64_t)number << 20 | i);
	w->share->make(w, words, TEXT, &p->part[0]);
	w->share->make(w, words, IMAGE, &p->part[1]);
	for (uint32_t to = 0; to < w->workers; to++)
		if (to != w->rank && n->homes[p->author] >> to & 1)
			share_send(w, to, KIND_POST + p->author * 2, p->part, 2);
}

static uint64_t look(struct worker *w, const struct object *o)
{
	const void *content = w->share->read(w, o);
	uint64_t digest = hash_bytes(content, o->size);

	w->share->done(w, o, content);
	return digest;
}

/* What a user reads.  Posts of one author are read in any order. */
static uint64_t read_posts(struct worker *w, const struct network *n, uint32_t user)
{
	uint64_t digest = 0;

	for (uint32_t k = 0; k < FOLLOWS; k++)
		for (uint32_t i = 0; i < n->known; i++) {
			if (n->posts[i].author != n->follows[user][k])
				continue;
			digest += hash(look(w, &n->posts[i].part[0]) + user);
			if (hash((uint64_t)user << 20 | n->posts[i].author) % 4 == 0)
				digest += hash(look(w, &n->posts[i].part[1]) + user);
		}
	return digest;
}

/* The first @own posts are the worker's. */
static void delete_posts(struct worker *w, struct network *n, uint32_t own)
{
	struct object objects[2 * POSTS];

	for (uint32_t i = 0; i < n->known; i++)
		for (uint32_t k = 0; k < 2; k++) {
			if (i < own)
				objects[2 * i + k] = n->posts[i].part[k];
			else
				share_forget(w, &n->posts[i].part[k]);
		}
	w->share->drop(w, objects, 2 * own);
}

static uint64_t run_round(struct worker *w, struct network *n, uint64_t round)
{
	uint64_t digest = 0;
	uint32_t own;

	n->known = 0;
	for (uint32_t i = 0; i < POSTS; i++)
		if (author_of(round, i) % w->workers == w->rank)
			compose(w, n, round, i);
	own = n->known;
	for (uint32_t i = 0; i < POSTS; i++) {
		struct post *p = &n->posts[n->known];
		uint32_t author = author_of(round, i);

		if (author % w->workers == w->rank || !(n->homes[author] >> w->rank & 1))
			continue;
		p->author = author;
		share_receive(w, KIND_POST + author * 2, p->part, 2);
		n->known++;
	}
	for (uint32_t u = w->rank; u < USERS; u += w->workers)
		digest += read_posts(w, n, u);
	barrier();
	delete_posts(w, n, own);
	return digest;
}

static uint64_t run(struct worker *w, uint64_t rounds)
{
	struct network *n = calloc(1, sizeof(*n));
	uint64_t digest = 0;

	if (!n)
		give_up("out of memory");
	know_all(w, n);
	for (uint64_t round = 0; round < rounds; round++)
		digest += run_round(w, n, round);
	free(n);
	return digest;
}

const struct program program_social = { "social", NULL, run };
