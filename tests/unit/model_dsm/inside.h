/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What the parts of the world of world.h share.  The functions are described where they are. */
#ifndef EBB_MODEL_DSM_INSIDE_H
#define EBB_MODEL_DSM_INSIDE_H

#include <stdbool.h>

#include "userlib/dsm/dsm_step.h"
#include "world.h"

enum { MEMBERS = 3, PLACES = 5, CLAIMS = 2, BOXES = 3, NAMES = 16, MESSAGES = 8, CACHED = 2 };

/* What a member does: one operation of the protocol, or several. */
enum doing { IDLE, NEW, CHANGE, OFFER, READ, TAKE, FINISH, BACK, RECLAIM, SETTLE, TAKE_BACK,
	     RESTORE, COPY, READ_SAVED, RENAME, DOINGS };

/* A member's places. */
enum slot_state { NOT_MINE, UNUSED, RESERVED, OWNED, OFFERED, LENT, GUEST, GIVEN_BACK };

enum message_kind { NOTHING, PARCEL, LOAN, VIEW };

enum { WORDS = 2 };

struct place {
	uint8_t owner, zeroed;
	uint16_t generation;
	uint32_t number; /* in its owner's memory */
	struct dsm_head head[2]; /* where one is, another owner has content */
	uint8_t body[8]; /* WORDS of them: values, each word separately */
	struct dsm_head twin;
	uint8_t twin_body[8];
	uint8_t fenced, unused[7];
};

struct slot {
	uint8_t state, box, claim, value;
	uint32_t unused;
	uint64_t ticket, from, from_ticket, name;
};

struct flight {
	uint8_t doing, place, box, claim; /* of what the member works at */
	uint8_t other, part, word, told;  /* a second place; the next effect */
	uint8_t zeroing, message;
	uint16_t generation; /* of the place that a swap is meant for */
	uint8_t body[4];
	uint8_t late, after; /* its member has lost the donor; COPY: of what */
	uint8_t over, unused[5]; /* the read must not have the value */
	struct dsm_op op;
	struct dsm_verb verb;
};

struct member {
	uint8_t alive, vacant, incarnation, claims; /* claims: a bit each */
	uint8_t cached, cut, fenced, unused;
	struct {
		uint64_t at, stamp, value;
	} cache[CACHED];
	struct slot slot[PLACES];
	struct flight f, posted;
};

/* Memory of a member for its claims. */
struct presence {
	uint16_t generation;
	uint8_t owned, unused[5];
	struct dsm_record record[CLAIMS];
};

/* What is true, whatever members believe. */
struct box {
	uint8_t owner, value, borrower, borrower_incarnation;
	uint8_t told, back, exists, ended; /* ended: a loan by an owner that has lost the donor */
};

struct message {
	uint64_t at, stamp;
	uint8_t kind, box, giver, incarnation, unused[4];
};

struct world {
	struct dsm_budget budget;
	uint8_t members, places, values, boxes;
	uint8_t second, unused[7]; /* places at the second donor, the last ones; 0 = no twins */
	struct place place[PLACES];
	struct presence presence[MEMBERS];
	struct member m[MEMBERS];
	struct box box[BOXES];
	struct {
		uint64_t at, stamp, value;
	} name[NAMES];
	struct message message[MESSAGES];
};

extern struct world W;

/* --- memory.c --- */

bool mutant(enum dsm_mutant which);
/* Notes what is violated first. */
void wrong(const char *what);
uint64_t at_of(uint32_t member, uint32_t place);
struct place *place_at(uint64_t at);
struct dsm_head *head_of(uint32_t place);
uint32_t member_of(uint64_t at);
uint64_t claim_of(uint32_t member, uint32_t claim);
struct dsm_record *record_at(uint64_t claim);
uint64_t next_stamp(struct place *p);
void publish(uint64_t at, uint64_t stamp, uint64_t value);
uint64_t value_of(uint64_t at, uint64_t stamp);
void send_message(enum message_kind kind, uint32_t m, uint32_t box, uint64_t at, uint64_t stamp);
uint8_t new_value(void);
int find_place(uint32_t m, bool *is_new);
int reserve(uint32_t m, bool at_once);
int reserve_claim(uint32_t m);
void release_claim(uint32_t m, uint32_t claim);
void free_place(uint32_t m, uint32_t place);
uint64_t fill(uint32_t m, uint32_t place, uint8_t value);
bool in_flight(const struct flight *f);
void go_on(uint32_t m, struct flight *f, int status);
void effect(uint32_t m, struct flight *f);

/* --- operations.c --- */

void begin_new(uint32_t m);
void begin_change(uint32_t m, uint32_t place);
void begin_offer(uint32_t m, uint32_t place, enum dsm_hold state);
void begin_read(uint32_t m, uint32_t message);
void begin_take(uint32_t m, uint32_t message);
void begin_back(uint32_t m, uint32_t place);
bool begin_reclaim(uint32_t m, uint32_t place, enum doing doing);
void ended(uint32_t m, struct flight *f);

/* --- twins.c --- */

bool is_near(uint32_t place);
bool has_twin(uint32_t place);
bool at_twin(const struct flight *f);
bool is_cut(uint32_t m, uint64_t at);
void check_current(const struct message *s);
bool is_over(const struct message *s);
bool may_be_over(uint32_t m, const struct message *s);
void reclaim_lost(uint32_t m, uint32_t place);
void begin_rename(uint32_t m, uint32_t place);
void cut(uint32_t m);
void fence(uint32_t m);

#endif
