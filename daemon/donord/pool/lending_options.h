/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Limits and times of lending, as the options of ebb-donord(8) set them. */
#ifndef EBB_LENDING_OPTIONS_H
#define EBB_LENDING_OPTIONS_H

#include <stdint.h>

#include "lib/base/options.h"

struct eviction_options {
	uint64_t overdue; /* ns: loans recalled longer ago are reported; 0 = never */
	uint64_t revoke;  /* ns: ... are revoked when the machine runs out of memory; 0 = never */
};

struct session_options {
	uint64_t quota;       /* bytes a borrower may have; 0 = no limit */
	/* Most from one address, of those that no key tells apart; 0 = no limit. */
	uint64_t peer_connections;
	uint64_t key_connections; /* most with keys of one name, from all addresses; 0 = no limit */
	uint64_t keep;        /* ns: session grace period */
	uint64_t delay;       /* ns: replies to READ are held back, each by itself */
};

struct lending_options {
	/*
	 * Bytes to leave to the machine's own programs: slabs come and go with its
	 * needs, up to the pool's places.  0 = all places are filled at start and stay.
	 */
	uint64_t headroom;
	uint64_t drain;       /* ns to wait for slabs to leave before the end */
	struct session_options sessions;
	struct eviction_options eviction;
	/*
	 * Files and directories of borrowers' keys.  With one, connections over the network
	 * need a key; without, only this machine can connect.
	 */
	struct option_list keys;
	const char *machine;  /* directory for machine_sample(); NULL = /proc */
};

#endif
