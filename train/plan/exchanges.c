/* Groups the bridges of a plan's document into exchanges: all values that one party (a module, or all modules of one
 * name) sends to another party. */
#include "plan/exchanges.h"

#include <stdio.h>
#include <string.h>
#include "base/memory.h"
#include "plan/picture.h"

/* If there are more modules than this, all modules with the same name (but for a number in it) are shown as one
 * party. */
enum { PARTIES_MOST = 8 };

static const char *const ways[] = {"forward", "backward"};

/* ---- parties: the modules, or all modules of one name ---- */

/* Returns the index of the party with this name on this pool or, if `is_merged` is 1, on any pool; party_count if there
 * is no such party. */
static size_t party_of(const ad_exchanges *x, const char *name, json_int_t pool, int is_merged) {
  size_t i = 0;
  while (i < x->party_count && (strcmp(x->parties[i].name, name) != 0 || (!is_merged && x->parties[i].pool != pool)))
    i++;
  return i;
}

/* Adds a module to the party to which it belongs, and first adds that party if it does not exist. `is_merged` has the
 * meaning of party_of. */
static void add_party(ad_exchanges *x, const json_t *plan, const json_t *module, int is_merged) {
  const json_t *pool = ad_pool_of(plan, module);
  json_int_t number = ad_integer_of(module, "pool"), ranks = ad_integer_of(pool, "ranks");
  const char *name = ad_text_of(module, "name");
  ad_party *party = &x->parties[party_of(x, name, number, is_merged)];
  if (party == &x->parties[x->party_count]) {
    x->party_count++;
    *party = (ad_party){.name = name,
                        .mesh = ad_text_of(module, "mesh"),
                        .pool = number,
                        .first_rank = ad_integer_of(pool, "first_rank")};
  }
  party->modules++;
  party->ranks = ad_integer_of(pool, "first_rank") + ranks - party->first_rank;
}

static void find_parties(ad_exchanges *x, const json_t *plan, int is_merged) {
  const json_t *module;
  size_t i;
  x->party_count = 0;
  json_array_foreach(json_object_get(plan, "modules"), i, module) add_party(x, plan, module, is_merged);
}

/* Numbers the parties that have the same name. */
static void number_namesakes(ad_exchanges *x) {
  for (size_t i = 0; i < x->party_count; i++)
    for (size_t j = 0; j < x->party_count; j++) {
      int is_namesake = !strcmp(x->parties[i].name, x->parties[j].name);
      x->parties[i].namesakes += (size_t)is_namesake;
      x->parties[i].number += (size_t)(is_namesake && j <= i);
    }
}

/* ---- exchanges: the bridges between two parties ---- */

const char *ad_exchange_dtype(const ad_exchange *exchange, int is_back) {
  return ad_text_of(json_object_get(exchange->first, ways[is_back]), "dtype");
}

static const char *layout_of(const json_t *bridge, const char *side) {
  return ad_text_of(json_object_get(bridge, side), "layout");
}

/* Returns 1 if two exchanges have the same parties, layouts and dtypes. */
static int is_same(const ad_exchange *a, const ad_exchange *b) {
  return a->from == b->from && a->to == b->to && !strcmp(layout_of(a->first, "from"), layout_of(b->first, "from")) &&
         !strcmp(layout_of(a->first, "to"), layout_of(b->first, "to")) &&
         !strcmp(ad_exchange_dtype(a, 0), ad_exchange_dtype(b, 0)) &&
         !strcmp(ad_exchange_dtype(a, 1), ad_exchange_dtype(b, 1));
}

/* Returns the length of the longest common prefix of two names that ends in a dot and is no longer than `most`. */
static size_t common_prefix(const char *a, const char *b, size_t most) {
  size_t same = 0, end = 0;
  for (; same < most && a[same] && a[same] == b[same]; same++)
    if (a[same] == '.') end = same + 1;
  return end;
}

/* Adds a bridge to an exchange. If microbatches have two sizes, each value has two consecutive bridges, but is counted
 * once. */
static void add_bridge(ad_exchange *to, const json_t *bridge) {
  const char *site = ad_text_of(bridge, "site"), *first = ad_text_of(to->first, "site");
  if (!to->last) to->prefix = strlen(site);
  if (!to->last || strcmp(ad_text_of(to->last, "site"), site) != 0) to->values++;
  if (strcmp(first, site) != 0) to->prefix = common_prefix(first, site, to->prefix);
  to->last = bridge;
  for (int way = 0; way < 2; way++)
    to->bytes[way] += ad_integer_of(bridge, "times") * ad_integer_of(json_object_get(bridge, ways[way]), "bytes");
}

static size_t side_of(const ad_exchanges *x, const json_t *bridge, const char *side, int is_merged) {
  const json_t *end = json_object_get(bridge, side);
  return party_of(x, ad_text_of(end, "module"), ad_integer_of(end, "pool"), is_merged);
}

static void find_exchanges(ad_exchanges *x, const json_t *plan, int is_merged) {
  const json_t *bridge;
  size_t i;
  json_array_foreach(json_object_get(plan, "bridges"), i, bridge) {
    ad_exchange added = {
        .from = side_of(x, bridge, "from", is_merged), .to = side_of(x, bridge, "to", is_merged), .first = bridge};
    size_t at = 0;
    while (at < x->count && !is_same(&x->list[at], &added)) at++;
    if (at == x->count) x->list[x->count++] = added;
    add_bridge(&x->list[at], bridge);
  }
}

/* Returns 1 if `a` comes after `b`: exchanges are sorted by sender, then by receiver. */
static int is_after(const ad_exchange *a, const ad_exchange *b) {
  return a->from > b->from || (a->from == b->from && a->to > b->to);
}

static void sort(ad_exchanges *x) {
  for (size_t i = 1; i < x->count; i++)
    for (size_t j = i; j && is_after(&x->list[j - 1], &x->list[j]); j--) {
      ad_exchange moved = x->list[j];
      x->list[j] = x->list[j - 1];
      x->list[j - 1] = moved;
    }
}

ad_status ad_exchanges_of(const json_t *plan, ad_exchanges *out) {
  ad_exchanges x = {0};
  ad_status status = ad_new(json_array_size(json_object_get(plan, "modules")) + 1, &x.parties);
  if (!status) status = ad_new(json_array_size(json_object_get(plan, "bridges")) + 1, &x.list);
  if (status) {
    ad_exchanges_release(&x);
    return status;
  }
  find_parties(&x, plan, 0);
  int is_merged = x.party_count > PARTIES_MOST;
  if (is_merged) find_parties(&x, plan, 1);
  number_namesakes(&x);
  find_exchanges(&x, plan, is_merged);
  sort(&x);
  *out = x;
  return AD_OK;
}

void ad_exchanges_release(ad_exchanges *exchanges) {
  ad_release(exchanges->parties);
  ad_release(exchanges->list);
}

int ad_exchanges_join_values(const ad_exchanges *exchanges) {
  for (size_t i = 0; i < exchanges->count; i++)
    if (exchanges->list[i].values > 1) return 1;
  return 0;
}

int ad_party_begins_in(const ad_exchanges *exchanges, json_int_t pool) {
  for (size_t i = 0; i < exchanges->party_count; i++)
    if (exchanges->parties[i].pool == pool) return 1;
  return 0;
}

/* ---- names of parties and exchanges ---- */

const char *ad_party_text(const ad_party *party, char *buffer, size_t size) {
  if (party->namesakes > 1)
    snprintf(buffer, size, "%s %zu of %zu", party->name, party->number, party->namesakes);
  else
    snprintf(buffer, size, "%s", party->name);
  return buffer;
}

const char *ad_exchange_text(const ad_exchange *exchange, char *buffer, size_t size) {
  const char *site = ad_text_of(exchange->first, "site");
  if (exchange->values > 1)
    snprintf(buffer, size, "%.*s*, %zu values", (int)exchange->prefix, site, exchange->values);
  else
    snprintf(buffer, size, "%s", site);
  return buffer;
}
