/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Limits and times of lending, set by the options of ebb-donord(8). */
#ifndef EBB_LENDING_OPTIONS_H
#define EBB_LENDING_OPTIONS_H

#include <stdint.h>

#include "lib/base/options.h"

struct eviction_options {
	uint64_t overdue; /* ns: loans recalled longer ago are reported; 0 = never */
	uint64_t revoke;  /* ns: ... are revoked when the machine runs out of memory; 0 = never */
	bool no_emergency; /* take no emergency measures: drop, recall, revoke backed slabs */
};

/* Longest session grace period of an ending donor. */
#define KEEP_ENDING_NS (3 * 1000000000ull)

struct session_options {
	uint64_t quota;       /* bytes a borrower may have; 0 = no limit */
	uint64_t rate;        /* bytes of pages a second per key or address; 0 = no limit */
	/* Most connections without a key from one address; 0 = no limit. */
	uint64_t peer_connections;
	uint64_t key_connections; /* limit of connections per key name; 0 = no limit */
	uint64_t keep;        /* ns: session grace period */
	uint64_t delay;       /* ns by which each READ reply is delayed */
};

struct lending_options {
	/*
	 * Bytes to keep free for the machine's own programs: the pool grows and shrinks with
	 * their needs.  0 = all slabs are made at start and stay.
	 */
	uint64_t headroom;
	uint64_t far;         /* bytes of far memory at most; 0 = none */
	uint64_t far_jobs;    /* bytes for tables of jobs; 0 = no jobs */
	uint64_t far_jobs_cpu; /* percent of a processor that they may use, 1 to 100 */
	uint64_t drain;       /* ns to wait for borrowers to release slabs at the end */
	struct session_options sessions;
	struct eviction_options eviction;
	/*
	 * Files and directories of borrowers' keys.  With any, network connections need a key;
	 * without, only this machine can connect.
	 */
	struct option_list keys;
	const char *machine;  /* directory for machine_sample(); NULL = /proc */
};

#endif
