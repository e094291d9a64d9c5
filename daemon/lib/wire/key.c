// SPDX-License-Identifier: GPL-2.0-or-later
#include <arpa/inet.h>
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/sha.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "address.h"
#include "key.h"
#include "lib/base/cleanup.h"
#include "local.h"

#define RANDOM "ebb-key-1"
#define DERIVED "ebb-key-2"
#define HEX (2 * KEY_BYTES)
/* Word, name, donor, key, each with a blank or the end of the line; NUL. */
#define LINE (sizeof(DERIVED) + KEY_NAME + KEY_DONOR + HEX + 2)
/* Begins the text of a derivation, zero-padded: no other use of a key has this label. */
#define LABEL "ebb donor key"
#define LABEL_SIZE 16
#define SUFFIX ".key"
/* Remedies: the first for readers that may be a borrower or a donor. */
#define CREATE "run \"ebbctl key create\" for a borrower, \"ebbctl key derive\" for a donor"

static void to_hex(const uint8_t *bytes, size_t n, char *hex)
{
	static const char digits[] = "0123456789abcdef";

	for (size_t i = 0; i < n; i++) {
		*hex++ = digits[bytes[i] >> 4];
		*hex++ = digits[bytes[i] & 15];
	}
	*hex = '\0';
}

static int digit(char c)
{
	return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static int from_hex(const char *hex, uint8_t *bytes, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		int high = digit(hex[2 * i]), low = high < 0 ? -1 : digit(hex[2 * i + 1]);

		if (low < 0)
			return -EINVAL;
		bytes[i] = (uint8_t)(high << 4 | low);
	}
	return hex[2 * n] ? -EINVAL : 0;
}

static int name_valid(const char *name)
{
	size_t len = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_-");

	return len && !name[len] && len < KEY_NAME && *name != '_' && *name != '-';
}

int key_name_check(const char *name, const char *what, struct error *e)
{
	return name_valid(name) ? 0 :
	       fail_exit(e, EXIT_USAGE, EINVAL,
			 "%s: \"%.64s\" is not a valid key name; use 1 to %d characters, a-z, 0-9, _ and -, the first a letter or digit",
			 what, name, KEY_NAME - 1);
}

static void take_fingerprint(struct key *k)
{
	uint8_t text[KEY_NAME + KEY_BYTES] = { 0 }, digest[SHA256_DIGEST_LENGTH];

	memcpy(text, k->name, strlen(k->name));
	memcpy(text + KEY_NAME, k->bytes, KEY_BYTES);
	SHA256(text, sizeof(text), digest);
	OPENSSL_cleanse(text, sizeof(text));
	to_hex(digest, (KEY_FINGERPRINT - 1) / 2, k->fingerprint);
}

int key_make(struct key *k, const char *name, struct error *e)
{
	struct key made = { .name = "" };
	int r = key_name_check(name, "name", e);

	if (r)
		return r;
	strcpy(made.name, name);
	if (getrandom(made.bytes, KEY_BYTES, 0) != KEY_BYTES)
		return fail(e, errno, "key %s: getrandom: %m", name);
	take_fingerprint(&made);
	*k = made;
	return 0;
}

/* Copies "HOST:PORT"; all spellings of a name or of an IPv6 address become one. */
static void unify(char name[static KEY_DONOR], const char *address)
{
	char host[INET6_ADDRSTRLEN], port[6];
	struct in6_addr six;

	if (sscanf(address, "[%45[0-9a-fA-F:.]]:%5s", host, port) == 2 &&
	    inet_pton(AF_INET6, host, &six) == 1) {
		snprintf(name, KEY_DONOR, "[%s]:%s",
			 inet_ntop(AF_INET6, &six, host, sizeof(host)), port);
		return;
	}
	do
		*name++ = (char)tolower((unsigned char)*address);
	while (*address++);
}

int key_donor_name(const char *address, const char *what, char name[static KEY_DONOR],
		   struct error *e)
{
	char text[KEY_DONOR];
	int r;

	if (local_is(address))
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "%s: \"%.64s\": a unix socket needs no key; give HOST:PORT", what,
				 address);
	r = address_check(address_place(address), what, text, sizeof(text), e);
	if (!r)
		unify(name, text);
	return r;
}

int key_derive(struct key *out, const struct key *k, const char *name)
{
	uint8_t text[LABEL_SIZE + KEY_NAME + KEY_DONOR] = LABEL;
	struct key derived = { .name = "" };

	strcpy(derived.name, k->name);
	strcpy(derived.donor, name);
	memcpy(text + LABEL_SIZE, k->name, strlen(k->name));
	memcpy(text + LABEL_SIZE + KEY_NAME, name, strlen(name));
	if (!HMAC(EVP_sha256(), k->bytes, KEY_BYTES, text, LABEL_SIZE + KEY_NAME + strlen(name),
		  derived.bytes, NULL))
		return -EIO;
	take_fingerprint(&derived);
	*out = derived;
	key_forget(&derived);
	return 0;
}

static int write_line(int fd, const char *line)
{
	size_t len = strlen(line);
	ssize_t n = write(fd, line, len);

	if (n < 0 || fsync(fd) < 0)
		return -errno;
	return (size_t)n == len ? 0 : -ENOSPC;
}

int key_save(const struct key *k, const char *path, struct error *e)
{
	_cleanup_close_ int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	char line[LINE], hex[HEX + 1];
	int r;

	if (fd < 0 && errno == EEXIST)
		return fail_exit(e, EXIT_REFUSED, EEXIST,
				 "key %s: exists; choose another file, or remove it if it is unused",
				 path);
	if (fd < 0)
		return fail(e, errno, "key %s: cannot create: %s; choose an existing directory such as /etc/ebb",
			    path, strerror(errno));
	to_hex(k->bytes, KEY_BYTES, hex);
	snprintf(line, sizeof(line), "%s %s%s%s %s\n", *k->donor ? DERIVED : RANDOM, k->name,
		 *k->donor ? " " : "", k->donor, hex);
	r = write_line(fd, line);
	OPENSSL_cleanse(line, sizeof(line));
	OPENSSL_cleanse(hex, sizeof(hex));
	if (!r)
		return 0;
	unlink(path);
	return fail(e, r, "key %s: cannot write: %s; free some space", path, strerror(-r));
}

static int malformed(const char *path, struct error *e)
{
	return fail_exit(e, EXIT_USAGE, EINVAL,
		    "key %s: not a key file: expected one line \"" RANDOM
		    " NAME KEY\" or \"" DERIVED
		    " NAME DONOR KEY\"; " CREATE, path);
}

static int trusted(uid_t owner)
{
	return owner == 0 || owner == geteuid();
}

/* Of a donor's key, which belongs to the donor's user, root may show name and fingerprint. */
enum use { KEY_USED, KEY_SHOWN };

/* A user that may write the file, or the link to it, may choose the key. */
static int check_owner(const char *path, int fd, enum use use, struct stat *st, struct error *e)
{
	struct stat link;

	if (fstat(fd, st) < 0 || lstat(path, &link) < 0)
		return fail(e, errno, "key %s: %m", path);
	if (!S_ISREG(st->st_mode))
		return fail_exit(e, EXIT_USAGE, EINVAL, "key %s: not a file; give a key file", path);
	if (use == KEY_USED && !trusted(st->st_uid))
		return fail_exit(e, EXIT_REFUSED, EACCES,
				 "key %s: belongs to user %u; chown it to root, or to the user that runs this", path,
				 st->st_uid);
	if (use == KEY_USED && !trusted(link.st_uid))
		return fail_exit(e, EXIT_REFUSED, EACCES,
				 "key %s: the link belongs to user %u, which could choose another key; name the file itself",
				 path, link.st_uid);
	if (st->st_mode & 077)
		return fail_exit(e, EXIT_REFUSED, EACCES,
				 "key %s: accessible to other users (mode %04o); chmod 600 it, and create a new key if another user could have read it",
				 path, st->st_mode & 07777);
	return 0;
}

/* Modifies @line. */
static int parse(struct key *k, char *line)
{
	char *word = strsep(&line, " "), *name = strsep(&line, " ");
	bool derived = !strcmp(word, DERIVED);
	char *donor = derived ? strsep(&line, " ") : NULL, canonical[KEY_DONOR];

	if (!derived && strcmp(word, RANDOM))
		return -EINVAL;
	if (!line || !name_valid(name) || from_hex(line, k->bytes, KEY_BYTES))
		return -EINVAL;
	if (derived && (key_donor_name(donor, "donor", canonical, NULL) || strcmp(donor, canonical)))
		return -EINVAL;
	strcpy(k->name, name);
	if (derived)
		strcpy(k->donor, donor);
	take_fingerprint(k);
	return 0;
}

static int load(struct key *k, const char *path, enum use use, struct error *e)
{
	/* Opening a pipe must not block. */
	_cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	struct key read_key = { .name = "" };
	char line[LINE];
	struct stat st;
	ssize_t n;
	int r;

	if (fd < 0 && errno == ENOENT)
		return fail(e, ENOENT, "key %s: no such file; " CREATE, path);
	if (fd < 0)
		return fail(e, errno, "key %s: %s; run as a user with read access", path,
			    strerror(errno));
	r = check_owner(path, fd, use, &st, e);
	if (r)
		return r;
	n = read(fd, line, sizeof(line) - 1);
	if (n < 0)
		return fail(e, errno, "key %s: %m", path);
	line[n] = '\0';
	/* Accepts one line, with or without newline, without NUL; a longer file does not fit. */
	if (n > 0 && line[n - 1] == '\n')
		line[--n] = '\0';
	r = strlen(line) == (size_t)n && (uint64_t)st.st_size <= sizeof(line) - 1 ?
	    parse(&read_key, line) : -EINVAL;
	OPENSSL_cleanse(line, sizeof(line));
	if (!r)
		*k = read_key;
	key_forget(&read_key);
	return r ? malformed(path, e) : 0;
}

int key_load(struct key *k, const char *path, struct error *e)
{
	return load(k, path, KEY_USED, e);
}

int key_show(struct key *k, const char *path, struct error *e)
{
	return load(k, path, KEY_SHOWN, e);
}

int key_load_own(struct key *k, const char *path, struct error *e)
{
	struct key own;
	int r = key_load(&own, path, e);

	if (r)
		return r;
	if (*own.donor)
		r = fail_exit(e, EXIT_USAGE, EINVAL,
			      "key %s: derived for the donor %s; give the key that it was derived of",
			      path, own.donor);
	else
		*k = own;
	key_forget(&own);
	return r;
}

void key_forget(struct key *k)
{
	OPENSSL_cleanse(k, sizeof(*k));
}

void key_identity(const struct key *k, char identity[static KEY_IDENTITY])
{
	snprintf(identity, KEY_IDENTITY, "%s:%s", k->name, k->fingerprint);
}

void key_number(const struct key *k, uint8_t number[static KEY_NUMBER])
{
	from_hex(k->fingerprint, number, KEY_NUMBER);
}

static int add_file(struct keyring *ring, const char *path, struct error *e)
{
	char identity[KEY_IDENTITY];
	struct key k;
	int r;

	if (!ring->keys)
		ring->keys = calloc(KEYRING_MAX, sizeof(*ring->keys));
	if (!ring->keys)
		return fail(e, ENOMEM, "key %s: out of memory", path);
	r = key_load(&k, path, e);
	if (r)
		return r;
	key_identity(&k, identity);
	if (keyring_find(ring, identity, strlen(identity)))
		r = 0;
	else if (ring->count == KEYRING_MAX)
		r = fail(e, E2BIG, "key %s: more than %d keys; remove unused ones", path,
			 KEYRING_MAX);
	else
		ring->keys[ring->count++] = k;
	key_forget(&k);
	return r;
}

static int is_key_file(const struct dirent *d)
{
	size_t len = strlen(d->d_name), suffix = strlen(SUFFIX);

	return len > suffix && *d->d_name != '.' && !strcmp(d->d_name + len - suffix, SUFFIX);
}

/* A user with write access to the directory can restore a removed key. */
static int check_directory(const char *path, int fd, struct error *e)
{
	struct stat st;

	if (fstat(fd, &st) < 0)
		return fail(e, errno, "keys %s: %m", path);
	if (!trusted(st.st_uid))
		return fail_exit(e, EXIT_REFUSED, EACCES,
				 "keys %s: belongs to user %u; chown it to root, or to the user that runs this", path,
				 st.st_uid);
	if (st.st_mode & 022)
		return fail_exit(e, EXIT_REFUSED, EACCES,
				 "keys %s: writable by other users (mode %04o); chmod 700 it and check its keys",
				 path, st.st_mode & 07777);
	return 0;
}

static int add_directory(struct keyring *ring, const char *path, enum keyring_absence absence,
			 struct error *e)
{
	_cleanup_dir_ DIR *dir = opendir(path);
	char file[PATH_MAX];
	struct dirent *d;
	int r, found = 0;

	if (!dir)
		return fail(e, errno, "keys %s: cannot read: %s; run as a user with read access", path, strerror(errno));
	r = check_directory(path, dirfd(dir), e);
	while (!r && (d = readdir(dir))) {
		if (!is_key_file(d))
			continue;
		found++;
		r = (size_t)snprintf(file, sizeof(file), "%s/%s", path, d->d_name) < sizeof(file) ?
		    add_file(ring, file, e) :
		    fail(e, ENAMETOOLONG, "keys %s: path too long; move the directory", path);
	}
	if (!r && !found && absence == KEYRING_NEEDED)
		r = fail_exit(e, EXIT_USAGE, ENOENT,
			      "keys %s: no file *" SUFFIX "; run \"ebbctl key derive\" at the borrower and copy the file here",
			      path);
	return r;
}

int keyring_add(struct keyring *ring, const char *path, enum keyring_absence absence,
		struct error *e)
{
	struct stat st;
	int r = stat(path, &st) < 0 ? -errno : 0;

	if (absence == KEYRING_MAY_BE_GONE &&
	    (r == -ENOENT || (!r && S_ISREG(st.st_mode) && !st.st_size)))
		return 0;
	return !r && S_ISDIR(st.st_mode) ? add_directory(ring, path, absence, e) :
					   add_file(ring, path, e);
}

void keyring_free(struct keyring *ring)
{
	if (ring->keys)
		OPENSSL_cleanse(ring->keys, KEYRING_MAX * sizeof(*ring->keys));
	free(ring->keys);
	*ring = (struct keyring){ 0 };
}

bool keyring_has_name(const struct keyring *ring, const char *name, size_t len)
{
	for (uint32_t i = 0; i < ring->count; i++)
		if (strlen(ring->keys[i].name) == len && !memcmp(ring->keys[i].name, name, len))
			return true;
	return false;
}

uint32_t keyring_shared(const struct keyring *ring, const struct key **first)
{
	uint32_t n = 0;

	*first = NULL;
	for (uint32_t i = ring->count; i--;) {
		if (*ring->keys[i].donor)
			continue;
		*first = &ring->keys[i];
		n++;
	}
	return n;
}

const struct key *keyring_find_number(const struct keyring *ring,
				      const uint8_t number[static KEY_NUMBER])
{
	char fingerprint[KEY_FINGERPRINT];

	to_hex(number, KEY_NUMBER, fingerprint);
	for (uint32_t i = 0; i < ring->count; i++)
		if (!strcmp(ring->keys[i].fingerprint, fingerprint))
			return &ring->keys[i];
	return NULL;
}

const struct key *keyring_find(const struct keyring *ring, const char *identity, size_t len)
{
	char known[KEY_IDENTITY];

	for (uint32_t i = 0; i < ring->count; i++) {
		key_identity(&ring->keys[i], known);
		if (strlen(known) == len && !memcmp(known, identity, len))
			return &ring->keys[i];
	}
	return NULL;
}
