// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/draw.h"
#include "lib/base/files.h"
#include "lib/wire/key.h"

#include <cmocka.h>

#define HEX "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1eff"
#define GOOD "ebb-key-1 spark " HEX "\n"
/* HMAC-SHA256(HEX, label || "spark" || "10.0.0.7:7070"), by another implementation. */
#define DERIVED_HEX "4c21039b8ca2e51512025c00af477e3e41a2fa05814145a829fe7be19d9dca92"
#define DERIVED "ebb-key-2 spark 10.0.0.7:7070 " DERIVED_HEX "\n"

static char directory[64], path[96], other[96];

static int setup(void **state)
{
	strcpy(directory, "/tmp/ebb-key-XXXXXX");
	if (!mkdtemp(directory))
		return -1;
	snprintf(path, sizeof(path), "%s/one.key", directory);
	snprintf(other, sizeof(other), "%s/two.key", directory);
	return 0;
}

static int teardown(void **state)
{
	unlink(path);
	unlink(other);
	return rmdir(directory);
}

static void put(const char *file, const char *text, size_t len, mode_t mode)
{
	int fd = open(file, O_WRONLY | O_CREAT | O_TRUNC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, len), len);
	assert_int_equal(fchmod(fd, mode), 0);
	close(fd);
}

/* Loading fails with @code and says @part; nothing is touched. */
static void refuse(int code, const char *part)
{
	struct key k, before;
	struct error e = { 0 };

	memset(&k, 0x5a, sizeof(k));
	before = k;
	assert_int_equal(key_load(&k, path, &e), code);
	assert_non_null(strstr(e.text, path));
	assert_non_null(strstr(e.text, part));
	assert_non_null(strchr(e.text, ';'));
	assert_memory_equal(&k, &before, sizeof(k));
}

static void made_saved_loaded(void **state)
{
	struct error e = { 0 };
	struct key k, again, third;
	struct stat st;

	assert_int_equal(key_make(&k, "spark", &e), 0);
	assert_int_equal(key_save(&k, path, &e), 0);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0600);
	assert_int_equal(key_load(&again, path, &e), 0);
	assert_memory_equal(&k, &again, sizeof(k));
	assert_int_equal(key_make(&third, "spark", &e), 0);
	assert_memory_not_equal(k.bytes, third.bytes, KEY_BYTES);
	assert_string_not_equal(k.fingerprint, third.fingerprint);
	/* Never over another. */
	assert_int_equal(key_save(&third, path, &e), -EEXIST);
	assert_int_equal(e.exit_status, EXIT_REFUSED);
	assert_int_equal(key_load(&again, path, NULL), 0);
	assert_memory_equal(&k, &again, sizeof(k));
}

static void format_is_as_documented(void **state)
{
	struct key k, renamed;

	put(path, GOOD, strlen(GOOD), 0400);
	assert_int_equal(key_load(&k, path, NULL), 0);
	assert_string_equal(k.name, "spark");
	assert_int_equal(k.bytes[1], 1);
	assert_int_equal(k.bytes[KEY_BYTES - 1], 0xff);
	/* The end of the line may be missing. */
	put(path, GOOD, strlen(GOOD) - 1, 0600);
	assert_int_equal(key_load(&renamed, path, NULL), 0);
	assert_memory_equal(&k, &renamed, sizeof(k));
	/* The same key under another name is another key. */
	put(path, "ebb-key-1 flink " HEX "\n", strlen(GOOD), 0600);
	assert_int_equal(key_load(&renamed, path, NULL), 0);
	assert_string_not_equal(k.fingerprint, renamed.fingerprint);
}

static void derived_key_is_one_donors(void **state)
{
	struct key k, derived, other, loaded;
	struct error e = { 0 };

	put(path, GOOD, strlen(GOOD), 0600);
	assert_int_equal(key_load_own(&k, path, &e), 0);
	assert_int_equal(key_derive(&derived, &k, "10.0.0.7:7070"), 0);
	put(path, DERIVED, strlen(DERIVED), 0600);
	assert_int_equal(key_load(&loaded, path, &e), 0);
	assert_memory_equal(&loaded, &derived, sizeof(loaded));
	assert_string_equal(loaded.name, "spark");
	assert_string_equal(loaded.donor, "10.0.0.7:7070");
	unlink(path);
	assert_int_equal(key_save(&derived, path, &e), 0);
	assert_int_equal(key_load(&loaded, path, &e), 0);
	assert_memory_equal(&loaded, &derived, sizeof(loaded));
	/* Of another donor, and of another key. */
	assert_int_equal(key_derive(&other, &k, "10.0.0.8:7070"), 0);
	assert_memory_not_equal(other.bytes, derived.bytes, KEY_BYTES);
	assert_string_not_equal(other.fingerprint, derived.fingerprint);
	strcpy(k.name, "spar");
	assert_int_equal(key_derive(&other, &k, "k10.0.0.7:7070"), 0);
	assert_memory_not_equal(other.bytes, derived.bytes, KEY_BYTES);
	/* A borrower has no use for it. */
	memset(&k, 0x5a, sizeof(k));
	other = k;
	assert_int_equal(key_load_own(&k, path, &e), -EINVAL);
	assert_non_null(strstr(e.text, "derived for the donor 10.0.0.7:7070; "));
	assert_memory_equal(&k, &other, sizeof(k));
}

static void donors_name_does_not_depend_on_spelling(void **state)
{
	static const char *const same[][2] = {
		{ "10.0.0.7", "10.0.0.7:7070" },
		{ "10.0.0.7:7070", "10.0.0.7:7070" },
		{ "rdma:10.0.0.7:07070", "10.0.0.7:7070" },
		{ "10.0.0.7:7071", "10.0.0.7:7071" },
		{ "Donor7.Example", "donor7.example:7070" },
		{ "[FE80:0:0::1]:1", "[fe80::1]:1" },
		{ "rdma:[::1]", "[::1]:7070" },
		{ "[FE80::1%2]:7070", "[fe80::1%2]:7070" },
	};
	static const char *const wrong[] = { "", "unix:/d.sock", "a b", "a:b:1", "10.0.0.7:0", "rdma:",
					     "\xc3\xa4", ":7070" };
	char name[KEY_DONOR], longest[KEY_DONOR + 16];
	struct error e = { 0 };

	for (size_t i = 0; i < sizeof(same) / sizeof(*same); i++) {
		assert_int_equal(key_donor_name(same[i][0], "donor", name, &e), 0);
		assert_string_equal(name, same[i][1]);
	}
	for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++)
		assert_int_equal(key_donor_name(wrong[i], "donor", name, &e), -EINVAL);
	memset(longest, 'a', sizeof(longest));
	longest[KEY_DONOR - strlen(":7070") - 1] = '\0';
	assert_int_equal(key_donor_name(longest, "donor", name, &e), 0);
	assert_int_equal(strlen(name), KEY_DONOR - 1);
	longest[KEY_DONOR - strlen(":7070") - 1] = 'a';
	longest[KEY_DONOR - strlen(":7070")] = '\0';
	assert_int_equal(key_donor_name(longest, "donor", name, &e), -EINVAL);
}

/* Whatever is in a file: what loads is saved as the file was, but for the end of its line. */
static void random_files(void **state)
{
	static const char *const good[] = { GOOD, DERIVED, "ebb-key-2 a [::1]:1 " HEX "\n" };
	uint64_t seed = 1;
	int loaded = 0;

	for (int i = 0; i < 1000; i++) {
		char text[256] = "", again[256] = "";
		const char *from = good[draw_below(&seed, 3)];
		size_t len = strlen(from);
		struct key k;

		memcpy(text, from, len);
		for (uint32_t n = draw_below(&seed, 3); n--;) {
			uint32_t at = draw_below(&seed, (uint32_t)len);
			uint32_t of = draw_below(&seed, (uint32_t)len);

			text[at] = draw_below(&seed, 2) ? text[of] : (char)draw32(&seed);
		}
		if (draw_below(&seed, 8) == 0)
			len = draw_below(&seed, (uint32_t)len);
		put(path, text, len, 0600);
		if (key_load(&k, path, NULL))
			continue;
		loaded++;
		unlink(other);
		assert_int_equal(key_save(&k, other, NULL), 0);
		assert_true(file_read(other, again, sizeof(again)) > 0);
		assert_memory_equal(text, again, strlen(again) - 1);
		assert_in_range(len, strlen(again) - 1, strlen(again));
	}
	assert_in_range(loaded, 100, 900);
}

static void what_is_no_key_is_refused(void **state)
{
#define NO_KEY(text) { text, sizeof(text) - 1 }
	static const struct { const char *text; size_t len; } wrong[] = {
		NO_KEY(""),
		NO_KEY("\n"),
		NO_KEY("ebb-key-1"),
		NO_KEY("ebb-key-1 \n"),
		NO_KEY("ebb-key-1 spark\n"),
		NO_KEY("ebb-key-3 spark " HEX "\n"),
		NO_KEY("ebb-key-1 spark 10.0.0.7:7070 " HEX "\n"),
		NO_KEY("ebb-key-2"),
		NO_KEY("ebb-key-2 spark\n"),
		NO_KEY("ebb-key-2 spark " HEX "\n"),
		NO_KEY("ebb-key-2 spark 10.0.0.7:7070\n"),
		NO_KEY("ebb-key-2 spark 10.0.0.7:7070 \n"),
		NO_KEY("ebb-key-2 spark  " HEX "\n"),
		NO_KEY("ebb-key-2  10.0.0.7:7070 " HEX "\n"),
		NO_KEY("ebb-key-2 spark 10.0.0.7:7070 " HEX " \n"),
		NO_KEY("ebb-key-2 spark 10.0.0.7:7070 " HEX "\n\n"),
		NO_KEY("ebb-key-2 spark 10.0.0.7:7070 10.0.0.8:7070 " HEX "\n"),
		/* Another text than key_donor_name() has for it. */
		NO_KEY("ebb-key-2 spark 10.0.0.7 " HEX "\n"),
		NO_KEY("ebb-key-2 spark rdma:10.0.0.7:7070 " HEX "\n"),
		NO_KEY("ebb-key-2 spark Donor7:7070 " HEX "\n"),
		NO_KEY("ebb-key-2 spark donor7:07070 " HEX "\n"),
		NO_KEY("ebb-key-2 spark [0::1]:7070 " HEX "\n"),
		NO_KEY("ebb-key-2 spark unix:/d.sock " HEX "\n"),
		NO_KEY("ebb-key-1  " HEX "\n"),
		NO_KEY("ebb-key-1 Spark " HEX "\n"),
		NO_KEY("ebb-key-1 -spark " HEX "\n"),
		NO_KEY("ebb-key-1 spark  " HEX "\n"),
		NO_KEY("ebb-key-1 spark " HEX "0\n"),
		NO_KEY("ebb-key-1 spark " HEX " \n"),
		NO_KEY("ebb-key-1 spark " HEX "\n\n"),
		NO_KEY("ebb-key-1 spark " HEX "\0\n"),
		NO_KEY(GOOD GOOD),
		NO_KEY("ebb-key-1 spark 00010203\n"),
		NO_KEY("ebb-key-1 spark zz0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1eff\n"),
		NO_KEY("ebb-key-1 a123456789012345678901234567890b " HEX "\n"),
	};

	struct error e = { 0 };
	struct key k;

	for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
		put(path, wrong[i].text, wrong[i].len, 0600);
		refuse(-EINVAL, "not a key file");
	}
	unlink(path);
	refuse(-ENOENT, "ebbctl key create");
	refuse(-ENOENT, "ebbctl key derive");
	assert_int_equal(key_load(&k, path, &e), -ENOENT);
	assert_int_equal(e.exit_status, EXIT_FAILED);
	assert_int_equal(mkfifo(path, 0600), 0);
	refuse(-EINVAL, "not a file");
}

static void who_else_may_use_it(void **state)
{
	static const mode_t open_modes[] = { 0640, 0604, 0620, 0610, 0644, 0601 };

	for (size_t i = 0; i < sizeof(open_modes) / sizeof(*open_modes); i++) {
		put(path, GOOD, strlen(GOOD), open_modes[i]);
		refuse(-EACCES, "chmod 600");
	}
}

static void whose_it_is(void **state)
{
	struct key k;

	if (geteuid())
		skip();
	put(path, GOOD, strlen(GOOD), 0600);
	assert_int_equal(chown(path, 12345, 0), 0);
	refuse(-EACCES, "key: belongs to user 12345; chown");
	/* Its owner is no reason not to show it; what others may do with it is. */
	assert_int_equal(key_show(&k, path, NULL), 0);
	assert_int_equal(chmod(path, 0640), 0);
	assert_int_equal(key_show(&k, path, NULL), -EACCES);
	/* A link is as safe as its directory. */
	unlink(path);
	put(other, GOOD, strlen(GOOD), 0600);
	assert_int_equal(symlink(other, path), 0);
	assert_int_equal(key_load(&k, path, NULL), 0);
	assert_int_equal(lchown(path, 12345, 0), 0);
	refuse(-EACCES, "link");
}

static void names(void **state)
{
	static const char *const wrong[] = {
		"", "-a", "_a", "A", "a b", "a/b", "a:b", "\xc3\xa4", "a1234567890123456789012345678901",
	};
	struct error e = { 0 };
	struct key k;

	for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++)
		assert_int_equal(key_make(&k, wrong[i], NULL), -EINVAL);
	assert_int_equal(key_make(&k, "a123456789012345678901234567890", &e), 0);
	assert_int_equal(key_make(&k, "0", &e), 0);
}

static void two_keys_of_one_name(void **state)
{
	char first[KEY_IDENTITY], second[KEY_IDENTITY];
	struct keyring ring = { 0 };
	uint8_t number[KEY_NUMBER];
	struct error e = { 0 };
	struct key k;

	assert_int_equal(keyring_add(&ring, directory, KEYRING_NEEDED, &e), -ENOENT);
	assert_int_equal(e.exit_status, EXIT_USAGE);
	assert_non_null(strstr(e.text, "ebbctl key derive"));
	assert_int_equal(key_make(&k, "spark", NULL), 0);
	assert_int_equal(key_save(&k, path, NULL), 0);
	key_identity(&k, first);
	assert_int_equal(key_make(&k, "spark", NULL), 0);
	assert_int_equal(key_save(&k, other, NULL), 0);
	key_identity(&k, second);

	assert_int_equal(keyring_add(&ring, path, KEYRING_NEEDED, NULL), 0);
	assert_non_null(keyring_find(&ring, first, strlen(first)));
	assert_null(keyring_find(&ring, second, strlen(second)));
	/* The one that is there already is not counted twice. */
	assert_int_equal(keyring_add(&ring, directory, KEYRING_NEEDED, NULL), 0);
	assert_int_equal(ring.count, 2);
	assert_memory_equal(keyring_find(&ring, second, strlen(second))->bytes, k.bytes, KEY_BYTES);
	assert_null(keyring_find(&ring, "spark", 5));
	assert_null(keyring_find(&ring, first, strlen(first) - 1));
	assert_null(keyring_find(&ring, "", 0));
	/* By its fingerprint's bytes. */
	key_number(&k, number);
	assert_memory_equal(keyring_find_number(&ring, number)->bytes, k.bytes, KEY_BYTES);
	number[KEY_NUMBER - 1] ^= 1;
	assert_null(keyring_find_number(&ring, number));
	keyring_free(&ring);
	assert_null(keyring_find_number(&ring, number));
	/* One bad file in a directory is told, not passed over. */
	put(other, GOOD, strlen(GOOD), 0644);
	memset(&e, 0, sizeof(e));
	assert_int_equal(keyring_add(&ring, directory, KEYRING_NEEDED, &e), -EACCES);
	assert_non_null(strstr(e.text, other));
	keyring_free(&ring);
	assert_int_equal(chmod(other, 0600), 0);
	/* Nor a directory where others could put one back. */
	for (mode_t bit = 02; bit <= 020; bit <<= 3) {
		assert_int_equal(chmod(directory, 0700 | bit), 0);
		memset(&e, 0, sizeof(e));
		assert_int_equal(keyring_add(&ring, directory, KEYRING_NEEDED, &e), -EACCES);
		assert_non_null(strstr(e.text, "chmod 700"));
	}
	assert_int_equal(chmod(directory, 0755), 0);
	assert_int_equal(keyring_add(&ring, directory, KEYRING_NEEDED, NULL), 0);
	keyring_free(&ring);
}

/* A donor that re-reads its keys drops removed ones. */
static void removed_keys(void **state)
{
	struct keyring ring = { 0 };
	struct error e = { 0 };
	struct key k;

	assert_int_equal(keyring_add(&ring, directory, KEYRING_MAY_BE_GONE, &e), 0);
	assert_int_equal(keyring_add(&ring, path, KEYRING_MAY_BE_GONE, &e), 0);
	assert_int_equal(keyring_add(&ring, path, KEYRING_NEEDED, &e), -ENOENT);
	assert_int_equal(ring.count, 0);
	put(path, "", 0, 0600);
	assert_int_equal(keyring_add(&ring, path, KEYRING_MAY_BE_GONE, &e), 0);
	assert_int_equal(ring.count, 0);
	/* What is there and no key is a mistake, not a wish. */
	put(path, "ebb-key-1", 9, 0600);
	assert_int_equal(keyring_add(&ring, path, KEYRING_MAY_BE_GONE, &e), -EINVAL);
	assert_int_equal(keyring_add(&ring, directory, KEYRING_MAY_BE_GONE, &e), -EINVAL);
	unlink(path);
	assert_int_equal(key_make(&k, "spark", NULL), 0);
	assert_int_equal(key_save(&k, path, NULL), 0);
	assert_int_equal(keyring_add(&ring, directory, KEYRING_MAY_BE_GONE, &e), 0);
	assert_int_equal(ring.count, 1);
	keyring_free(&ring);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(made_saved_loaded, setup, teardown),
		cmocka_unit_test_setup_teardown(format_is_as_documented, setup, teardown),
		cmocka_unit_test_setup_teardown(derived_key_is_one_donors, setup, teardown),
		cmocka_unit_test_setup_teardown(donors_name_does_not_depend_on_spelling, setup,
						teardown),
		cmocka_unit_test_setup_teardown(random_files, setup, teardown),
		cmocka_unit_test_setup_teardown(what_is_no_key_is_refused, setup, teardown),
		cmocka_unit_test_setup_teardown(who_else_may_use_it, setup, teardown),
		cmocka_unit_test_setup_teardown(whose_it_is, setup, teardown),
		cmocka_unit_test_setup_teardown(names, setup, teardown),
		cmocka_unit_test_setup_teardown(two_keys_of_one_name, setup, teardown),
		cmocka_unit_test_setup_teardown(removed_keys, setup, teardown),
	};

	return cmocka_run_group_tests_name("key", tests, NULL, NULL);
}
