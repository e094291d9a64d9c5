/* SPDX-License-Identifier: GPL-2.0-only */
/* Loans: the slabs that donors lend to a session. */
#ifndef EBB_LOAN_H
#define EBB_LOAN_H

#include "session.h"

/*
 * Requests a slab from the donor and fills in @place, except its epoch.  -ETIMEDOUT: the donor does
 * not answer in time; a slab that it grants later is released.
 */
int ebb_session_map(struct ebb_session *s, struct ebb_place *place, const char **why);
/* Releases the slab; @loan is invalid on return.  -ETIMEDOUT: the donor learns it later. */
int ebb_session_unmap(struct ebb_session *s, struct ebb_loan *loan, const char **why);
/* As above without waiting; from any context. */
void ebb_session_release(struct ebb_session *s, struct ebb_loan *loan);

/* A loan that the donor is asked to confirm. */
struct ebb_confirm {
	struct ebb_loan *loan;
	u64 address;              /* returned, */
	u32 rkey;
	int result;               /* 0, or -ESTALE: the donor does not have it any more */
};

/*
 * For ebb_session_ops.resume: confirms @count loans at @c, up to EBB_REQUESTS, which may be
 * released meanwhile.  Returns 0, or -errno: the session stays away.
 */
int ebb_session_confirm(struct ebb_session *s, struct ebb_confirm *c, u32 count);
/* Before the loans are confirmed: none is. */
void ebb_loans_doubt(struct ebb_session *s);
/* Forgets the loans that RELEASE has ended; the work item unmaps those confirmed before. */
void ebb_loans_settle(struct ebb_session *s);
/* session->release: unmaps loans.  Continues once the donor has answered a late call. */
void ebb_loans_release_work(struct work_struct *work);

#endif
