/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Keys that borrower and donor share.  A key file is one line:
 *
 *	ebb-key-1 NAME KEY
 *	ebb-key-2 NAME DONOR KEY
 *
 * NAME: 1 to 31 of a-z, 0-9, _ and -, the first a letter or digit; whose key it
 * is, for logs and quotas.  KEY: 32 bytes as 64 hexadecimal digits.  The file
 * belongs to root or to the user that reads it, and is readable by that user only.
 *
 * A borrower has a random key.  Of it a key is derived for each donor, by the address DONOR at
 * which the borrower lists that donor: with it a donor can act neither as the borrower nor as
 * another donor.  A donor with the borrower's own key can: that key is shared.
 *
 * Several keys may have one name: during a change both are good.  A key is
 * told from others of its name by its fingerprint, the first 8 bytes of the
 * SHA-256 of the line's NAME and KEY, which tells nothing about the key.
 */
#ifndef EBB_KEY_H
#define EBB_KEY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/error.h"

#define KEY_BYTES 32
#define KEY_NAME 32 /* with its NUL */
#define KEY_DONOR 128 /* with its NUL */
#define KEY_FINGERPRINT 17 /* 16 hexadecimal digits and NUL */
#define KEY_IDENTITY (KEY_NAME + KEY_FINGERPRINT)
#define KEY_NUMBER 8 /* bytes of a fingerprint */
#define KEYRING_MAX 256

struct key {
	char name[KEY_NAME];
	char donor[KEY_DONOR]; /* key_donor_name() of the only donor; "" = not derived */
	char fingerprint[KEY_FINGERPRINT];
	uint8_t bytes[KEY_BYTES];
};

struct keyring {
	struct key *keys; /* KEYRING_MAX, owned; NULL = none */
	uint32_t count;
};

/* Fails, naming @what, unless @name is a valid name of a key. */
int key_name_check(const char *name, const char *what, struct error *e);

/* Makes a random key named @name. */
int key_make(struct key *k, const char *name, struct error *e);

/*
 * Writes the name, for key_derive(), of the donor that borrowers list as @address: "HOST:PORT", the
 * same with RDMA and however the address is spelt.  A host name and its address differ: nothing
 * that a resolver says may choose the key.  -EINVAL, naming @what, also for unix sockets.
 */
int key_donor_name(const char *address, const char *what, char name[static KEY_DONOR],
		   struct error *e);

/* Derives *@out of @k, which is not derived, for the donor @name.  Returns 0 or -EIO. */
int key_derive(struct key *out, const struct key *k, const char *name);

/* Writes @k to @path, which must not exist: mode 0600, on disk when it returns. */
int key_save(const struct key *k, const char *path, struct error *e);

/*
 * Reads the key file @path.  -EACCES: its owner or mode is wrong, or it is a link
 * of another user; -EINVAL: it is no key file; other -errno from the file.  *@k is
 * untouched on failure.
 */
int key_load(struct key *k, const char *path, struct error *e);
/* key_load() of any owner's key, to show it, not to use it. */
int key_show(struct key *k, const char *path, struct error *e);
/* key_load() of a borrower's own key: -EINVAL for a derived one. */
int key_load_own(struct key *k, const char *path, struct error *e);
void key_forget(struct key *k);

/* Formats "NAME:FINGERPRINT", which identifies the key and is no secret. */
void key_identity(const struct key *k, char identity[static KEY_IDENTITY]);

/* Returns the fingerprint as bytes. */
void key_number(const struct key *k, uint8_t number[static KEY_NUMBER]);

/* Whether a missing or empty file or directory is an error or an empty keyring. */
enum keyring_absence { KEYRING_NEEDED, KEYRING_MAY_BE_GONE };

/*
 * Adds the key file @path, or all files "*.key" of the directory @path, without duplicates.  *@ring
 * can be freed after a failure.
 */
int keyring_add(struct keyring *ring, const char *path, enum keyring_absence absence,
		struct error *e);
void keyring_free(struct keyring *ring);

/* Returns the key of @identity (@len bytes, from the network), or NULL. */
const struct key *keyring_find(const struct keyring *ring, const char *identity, size_t len);
/* Returns whether a key has the name of @len bytes. */
bool keyring_has_name(const struct keyring *ring, const char *name, size_t len);
/* Returns the number of keys that are not derived, and in *@first the first of them. */
uint32_t keyring_shared(const struct keyring *ring, const struct key **first);
/* Returns the key with a fingerprint, or NULL. */
const struct key *keyring_find_number(const struct keyring *ring,
				      const uint8_t number[static KEY_NUMBER]);

#endif
