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
/*
 * For ebb_session_ops.resume: confirms the loan of @place, which may be released meanwhile, and
 * sets the address and key there.
 * -ESTALE: the donor does not have it any more; else -errno: the session stays away.
 */
int ebb_session_confirm(struct ebb_session *s, struct ebb_place *place);
/* Before the loans are confirmed: none is. */
void ebb_loans_doubt(struct ebb_session *s);
/* Forgets the loans that RELEASE has ended; the work item unmaps those confirmed before. */
void ebb_loans_settle(struct ebb_session *s);
/* session->release: unmaps loans.  Continues once the donor has answered a late call. */
void ebb_loans_release_work(struct work_struct *work);

#endif
