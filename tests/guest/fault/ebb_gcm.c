// SPDX-License-Identifier: GPL-2.0-only
/*
 * A gcm(aes) with the highest priority, marked as allocating memory per request, as those of some
 * accelerators are.  It passes all work to the next best one.
 */
#include <crypto/internal/aead.h>
#include <linux/module.h>

struct inner {
	struct crypto_aead *aead;
};

static int inner_init(struct crypto_aead *aead)
{
	struct inner *c = crypto_aead_ctx(aead);

	c->aead = crypto_alloc_aead("gcm(aes)", 0, CRYPTO_ALG_ALLOCATES_MEMORY);
	if (IS_ERR(c->aead))
		return PTR_ERR(c->aead);
	crypto_aead_set_reqsize(aead, sizeof(struct aead_request) + crypto_aead_reqsize(c->aead));
	return 0;
}

static void inner_exit(struct crypto_aead *aead)
{
	struct inner *c = crypto_aead_ctx(aead);

	crypto_free_aead(c->aead);
}

static int inner_setkey(struct crypto_aead *aead, const u8 *key, unsigned int length)
{
	struct inner *c = crypto_aead_ctx(aead);

	return crypto_aead_setkey(c->aead, key, length);
}

static int inner_setauthsize(struct crypto_aead *aead, unsigned int size)
{
	struct inner *c = crypto_aead_ctx(aead);

	return crypto_aead_setauthsize(c->aead, size);
}

static struct aead_request *passed_on(struct aead_request *r)
{
	struct inner *c = crypto_aead_ctx(crypto_aead_reqtfm(r));
	struct aead_request *to = aead_request_ctx(r);

	aead_request_set_tfm(to, c->aead);
	aead_request_set_callback(to, r->base.flags, r->base.complete, r->base.data);
	aead_request_set_crypt(to, r->src, r->dst, r->cryptlen, r->iv);
	aead_request_set_ad(to, r->assoclen);
	return to;
}

static int inner_encrypt(struct aead_request *r)
{
	return crypto_aead_encrypt(passed_on(r));
}

static int inner_decrypt(struct aead_request *r)
{
	return crypto_aead_decrypt(passed_on(r));
}

static struct aead_alg gcm = {
	.base = {
		.cra_name = "gcm(aes)", .cra_driver_name = "gcm-aes-allocates",
		.cra_priority = 10000, .cra_flags = CRYPTO_ALG_ALLOCATES_MEMORY | CRYPTO_ALG_ASYNC,
		.cra_blocksize = 1, .cra_ctxsize = sizeof(struct inner), .cra_module = THIS_MODULE,
	},
	.init = inner_init, .exit = inner_exit, .setkey = inner_setkey,
	.setauthsize = inner_setauthsize, .encrypt = inner_encrypt, .decrypt = inner_decrypt,
	.ivsize = 12, .maxauthsize = 16,
};

static int __init gcm_init(void)
{
	return crypto_register_aead(&gcm);
}

static void __exit gcm_exit(void)
{
	crypto_unregister_aead(&gcm);
}

module_init(gcm_init);
module_exit(gcm_exit);
MODULE_DESCRIPTION("ebb: a gcm(aes) that allocates memory, for tests");
MODULE_LICENSE("GPL");
