// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>

#include "lib/base/bytes.h"
#include "seal.h"

#define NONCE 12
#define AAD 16

size_t seal_bytes(uint32_t pages)
{
	return sizeof(struct seal_memory) + pages * sizeof(struct seal);
}

static int fill_random(void *to, size_t size)
{
	/* Up to 256 bytes are read completely. */
	return getrandom(to, size, 0) == (ssize_t)size ? 0 : -EIO;
}

int seal_table_init(struct seal_table *t, uint32_t pages, struct error *e)
{
	size_t size = seal_bytes(pages);
	struct seal_memory *m = mmap(NULL, size, PROT_READ | PROT_WRITE,
				     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int r;

	if (m == MAP_FAILED)
		return fail(e, errno, "seals: no %zu MiB for their table: %s; make the device smaller",
			    size >> 20, strerror(errno));
	if (mlock(m, size) < 0) {
		r = errno;
		munmap(m, size);
		return fail(e, r, "seals: cannot lock %zu MiB: %s; run as root or raise LimitMEMLOCK=",
			    size >> 20, strerror(r));
	}
	madvise(m, size, MADV_DONTDUMP);
	if (fill_random(m->key, sizeof(m->key)) || fill_random(&m->device, sizeof(m->device))) {
		munmap(m, size);
		return fail(e, EIO, "seals: no random key: getrandom(2) fails; see the kernel's log");
	}
	*t = (struct seal_table){ m, pages };
	return 0;
}

void seal_table_free(struct seal_table *t)
{
	if (!t->memory)
		return;
	OPENSSL_cleanse(t->memory, sizeof(*t->memory));
	munmap(t->memory, seal_bytes(t->pages));
	*t = (struct seal_table){ 0 };
}

static EVP_CIPHER_CTX *new_context(const uint8_t *key, int sealing)
{
	EVP_CIPHER_CTX *c = EVP_CIPHER_CTX_new();

	/* Set the key once: its schedule costs as much as half a page. */
	if (c && EVP_CipherInit_ex(c, EVP_aes_256_gcm(), NULL, key, NULL, sealing) == 1)
		return c;
	EVP_CIPHER_CTX_free(c);
	return NULL;
}

int sealer_init(struct sealer *s, struct seal_table *t, struct error *e)
{
	struct sealer made = {
		.table = t,
		.seal = new_context(t->memory->key, 1),
		.open = new_context(t->memory->key, 0),
	};

	if (!made.seal || !made.open) {
		sealer_free(&made);
		return fail(e, ENOSYS, "seals: OpenSSL has no AES-256-GCM here; see openssl.cnf(5)");
	}
	*s = made;
	return 0;
}

void sealer_free(struct sealer *s)
{
	EVP_CIPHER_CTX_free(s->seal);
	EVP_CIPHER_CTX_free(s->open);
	*s = (struct sealer){ 0 };
}

/* Sets nonce and associated data of @page with @counter. */
static bool begin(EVP_CIPHER_CTX *c, const struct seal_memory *m, uint32_t page, uint64_t counter)
{
	uint8_t nonce[NONCE], aad[AAD];
	int n;

	put32(nonce, page);
	put64(nonce + 4, counter);
	put64(aad, m->device);
	put64(aad + 8, page);
	return EVP_CipherInit_ex(c, NULL, NULL, NULL, nonce, -1) == 1 &&
	       EVP_CipherUpdate(c, NULL, &n, aad, AAD) == 1;
}

static bool seal_one(EVP_CIPHER_CTX *c, const struct seal_memory *m, uint32_t page,
		     struct seal *seal, const uint8_t *from, uint8_t *to)
{
	uint8_t none;
	int n;

	return begin(c, m, page, seal->counter) &&
	       EVP_CipherUpdate(c, to, &n, from, EBB_PAGE) == 1 &&
	       EVP_CipherFinal_ex(c, &none, &n) == 1 &&
	       EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_AEAD_GET_TAG, SEAL_TAG, seal->tag) == 1;
}

static bool open_one(EVP_CIPHER_CTX *c, const struct seal_memory *m, uint32_t page,
		     const uint8_t *from, uint8_t *to)
{
	const struct seal *seal = &m->seal[page];
	uint8_t none;
	int n;

	return seal->counter && begin(c, m, page, seal->counter) &&
	       EVP_CipherUpdate(c, to, &n, from, EBB_PAGE) == 1 &&
	       EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_AEAD_SET_TAG, SEAL_TAG, (void *)seal->tag) == 1 &&
	       EVP_CipherFinal_ex(c, &none, &n) == 1;
}

static bool has_pages(const struct seal_table *t, uint32_t first, uint32_t count)
{
	return first <= t->pages && count <= t->pages - first;
}

int seal_page(struct sealer *s, uint32_t page, const void *from, void *to)
{
	struct seal_memory *m = s->table->memory;
	struct seal *seal;
	uint64_t counter;

	if (!has_pages(s->table, page, 1))
		return -ERANGE;
	seal = &m->seal[page];
	/* Allocate before use: a number may be lost with its process, but is never reused. */
	counter = __atomic_fetch_add(&m->writes, 1, __ATOMIC_RELAXED);
	if (counter >= SEAL_MOST)
		return -EKEYEXPIRED;
	seal->counter = counter + 1;
	if (seal_one(s->seal, m, page, seal, from, to))
		return 0;
	seal->counter = 0;
	return -EIO;
}

int seal_open(struct sealer *s, uint32_t first, uint32_t count, void *payload, uint32_t *bad)
{
	const struct seal_memory *m = s->table->memory;

	if (!has_pages(s->table, first, count))
		return -ERANGE;
	for (uint32_t i = 0; i < count; i++) {
		uint8_t *page = (uint8_t *)payload + i * (size_t)EBB_PAGE;

		if (open_one(s->open, m, first + i, page, page))
			continue;
		memset(page, 0, EBB_PAGE);
		if (bad)
			*bad = first + i;
		return -EBADMSG;
	}
	return 0;
}

int seal_check(struct sealer *s, uint32_t first, uint32_t count, const void *payload,
	       uint32_t *bad)
{
	const struct seal_memory *m = s->table->memory;

	if (!has_pages(s->table, first, count))
		return -ERANGE;
	for (uint32_t i = 0; i < count; i++) {
		if (open_one(s->open, m, first + i, (const uint8_t *)payload + i * (size_t)EBB_PAGE,
			     s->scratch))
			continue;
		if (bad)
			*bad = first + i;
		return -EBADMSG;
	}
	return 0;
}

void seal_forget(struct seal_table *t, uint32_t first, uint32_t count)
{
	if (has_pages(t, first, count))
		memset(&t->memory->seal[first], 0, count * sizeof(struct seal));
}
