/* What the modules of a plan bring each other, all values of one way together. */
#ifndef PLAN_EXCHANGES_H
#define PLAN_EXCHANGES_H
#include <jansson.h>
#include <stdint.h>
#include "addend/status.h"

/* A module; of very many, all that have its name. */
typedef struct ad_party {
  const char *name, *mesh;
  json_int_t pool, first_rank, ranks; /* `pool`: the first one's */
  size_t modules;
  size_t number, namesakes; /* the how manieth of as many parties that have its name */
} ad_party;

/* Bridges between the same two parties with the same layouts and dtypes. */
typedef struct ad_exchange {
  size_t from, to;
  const json_t *first, *last; /* of its bridges */
  size_t values;
  size_t prefix;       /* how much of the first one's name all names begin with, up to a dot */
  json_int_t bytes[2]; /* in a step; forward, backward */
} ad_exchange;

typedef struct ad_exchanges {
  ad_party *parties;
  ad_exchange *list;
  size_t party_count, count;
} ad_exchanges;

/* They borrow the document. */
ad_status ad_exchanges_of(const json_t *plan, ad_exchanges *out) AD_CHECKED;
void ad_exchanges_release(ad_exchanges *exchanges);

/* Whether several values are one exchange anywhere; where not, each bridge is worth showing by itself. */
int ad_exchanges_join_values(const ad_exchanges *exchanges);
/* Whether a party's first module, or its only one, is in this pool. */
int ad_party_begins_in(const ad_exchanges *exchanges, json_int_t pool);

/* "ci", "blocks 1 of 2". Returns buffer. */
const char *ad_party_text(const ad_party *party, char *buffer, size_t size);
/* "images", "importances.*, 2 values". Returns buffer. */
const char *ad_exchange_text(const ad_exchange *exchange, char *buffer, size_t size);
const char *ad_exchange_dtype(const ad_exchange *exchange, int is_back);

#endif
