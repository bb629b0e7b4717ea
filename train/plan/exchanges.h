/* What the modules of a plan send each other. All values between the same two modules form one exchange. */
#ifndef PLAN_EXCHANGES_H
#define PLAN_EXCHANGES_H
#include <jansson.h>
#include <stdint.h>
#include "addend/status.h"

/* A sender or receiver of values. It is a module or, in a plan with very many modules, all modules with the same
 * name. */
typedef struct ad_party {
  const char *name, *mesh;
  json_int_t pool, first_rank, ranks; /* `pool` is the pool of the party's first module */
  /* number of modules in the party */
  size_t modules;
  /* this is party `number`, counted from 1, of the `namesakes` parties that have the same name ("blocks 1 of 2") */
  size_t number, namesakes;
} ad_party;

/* All bridges between the same two parties that have the same layouts and dtypes. */
typedef struct ad_exchange {
  /* indices of the sending and the receiving party */
  size_t from, to;
  const json_t *first, *last; /* the first and the last bridge of the exchange */
  /* number of values */
  size_t values;
  size_t prefix;       /* length of the prefix, up to a dot, that the names of all values share */
  json_int_t bytes[2]; /* bytes in a step, forward and backward */
} ad_exchange;

/* All exchanges of a plan. */
typedef struct ad_exchanges {
  ad_party *parties;
  ad_exchange *list;
  size_t party_count, count;
} ad_exchanges;

/* Finds the exchanges in a plan's document, and borrows the texts in it. */
ad_status ad_exchanges_of(const json_t *plan, ad_exchanges *out) AD_CHECKED;
void ad_exchanges_release(ad_exchanges *exchanges);

/* Returns 1 if some exchange has several values. If it returns 0, each bridge can be shown by itself. */
int ad_exchanges_join_values(const ad_exchanges *exchanges);
/* Returns 1 if at least one party (ad_party) begins in this pool: its first module, perhaps its only one, is there. */
int ad_party_begins_in(const ad_exchanges *exchanges, json_int_t pool);

/* Writes a party's name ("ci", "blocks 1 of 2") and returns buffer. */
const char *ad_party_text(const ad_party *party, char *buffer, size_t size);
/* Writes the names of an exchange's values ("images", "importances.*, 2 values") and returns buffer. */
const char *ad_exchange_text(const ad_exchange *exchange, char *buffer, size_t size);
const char *ad_exchange_dtype(const ad_exchange *exchange, int is_back);

#endif
