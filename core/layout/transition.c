/* Law 2: the only table of the operations that change a type, each with the operation that is its backward. */
#include "layout/transition.h"
#include "base/text.h"
#include "layout/type.h"

#define S AD_S(0) /* any S(d) */

static const ad_transition table[] = {
    /* move, from, to, moves bytes; backward: move, from, to */
    {AD_MOVE_ALL_REDUCE, AD_P, AD_R, 1, AD_MOVE_ALL_REDUCE, AD_P, AD_R},
    {AD_MOVE_ALL_REDUCE, AD_P, AD_I, 1, AD_MOVE_CONVERT, AD_I, AD_R},
    {AD_MOVE_REDUCE_SCATTER, AD_P, S, 1, AD_MOVE_ALL_GATHER, S, AD_R},
    {AD_MOVE_ALL_GATHER, S, AD_R, 1, AD_MOVE_REDUCE_SCATTER, AD_P, S},
    {AD_MOVE_ALL_GATHER, S, AD_I, 1, AD_MOVE_CONVERT, AD_I, S},
    {AD_MOVE_ALL_TO_ALL, S, S, 1, AD_MOVE_ALL_TO_ALL, S, S},
    {AD_MOVE_ALL_TO_ALL, AD_V, AD_V, 1, AD_MOVE_ALL_TO_ALL, AD_V, AD_V},
    {AD_MOVE_CONVERT, AD_I, AD_R, 0, AD_MOVE_ALL_REDUCE, AD_P, AD_I},
    {AD_MOVE_CONVERT, AD_R, S, 0, AD_MOVE_CONVERT, S, AD_P}, /* backward: zero outside this rank's part */
    {AD_MOVE_CONVERT, AD_I, S, 0, AD_MOVE_ALL_GATHER, S, AD_I},
    {AD_MOVE_CONVERT, S, AD_P, 0, AD_MOVE_CONVERT, AD_R, S},
    {AD_MOVE_ONCE, AD_R, AD_P, 0, AD_MOVE_ONCE, AD_R, AD_P}, /* only the first rank's replica counts */
    {AD_MOVE_DECLARE, AD_V, AD_P, 0, AD_MOVE_DECLARE, AD_R, AD_V},
    {AD_MOVE_DECLARE, AD_R, AD_V, 0, AD_MOVE_DECLARE, AD_V, AD_P},
    {AD_MOVE_DECLARE, AD_V, S, 0, AD_MOVE_DECLARE, S, AD_V},
    {AD_MOVE_DECLARE, S, AD_V, 0, AD_MOVE_DECLARE, AD_V, S},
};
enum { TABLE_COUNT = sizeof table / sizeof table[0] };

#undef S

static const char *const move_names[AD_MOVE_COUNT] = {
    [AD_MOVE_ALL_REDUCE] = "all_reduce", [AD_MOVE_REDUCE_SCATTER] = "reduce_scatter",
    [AD_MOVE_ALL_GATHER] = "all_gather", [AD_MOVE_ALL_TO_ALL] = "all_to_all",
    [AD_MOVE_CONVERT] = "convert",       [AD_MOVE_ONCE] = "once",
    [AD_MOVE_DECLARE] = "declare",
};

const char *ad_move_name(ad_move move) { return (unsigned)move < AD_MOVE_COUNT ? move_names[move] : "unknown"; }

const ad_transition *ad_transition_table(size_t *count) {
  *count = TABLE_COUNT;
  return table;
}

const ad_transition *ad_transition_find(ad_move move, ad_type from, ad_type to) {
  for (int i = 0; i < TABLE_COUNT; i++)
    if (table[i].move == move && table[i].from == ad_type_kind(from) && table[i].to == ad_type_kind(to))
      return &table[i];
  return NULL;
}

/* Returns the first entry of the table, of any operation, from one kind of type to another; NULL if there is none. */
static const ad_transition *find_any(ad_type from, ad_type to) {
  for (int i = 0; i < TABLE_COUNT; i++)
    if (table[i].from == ad_type_kind(from) && table[i].to == ad_type_kind(to)) return &table[i];
  return NULL;
}

int ad_move_states(ad_move move, ad_type from) { return move == AD_MOVE_DECLARE && !ad_type_is_sharded(from); }

ad_way ad_way_direct(ad_type from, ad_type to) {
  const ad_transition *direct = find_any(from, to);
  return direct ? (ad_way){1, {direct->move}, {from}, {to}} : (ad_way){0};
}

/* Returns 1 if at least one transition of the way makes a claim (see ad_move_states). */
static int states(const ad_way *way) {
  for (int i = 0; i < way->count; i++)
    if (ad_move_states(way->move[i], way->from[i])) return 1;
  return 0;
}

/* Returns the way of two transitions over the type `between`; its count is 0 if the table does not have both. */
static ad_way over(ad_type from, ad_type between, ad_type to) {
  ad_way first = ad_way_direct(from, between), second = ad_way_direct(between, to);
  if (!first.count || !second.count) return (ad_way){0};
  return (ad_way){2, {first.move[0], second.move[0]}, {from, between}, {between, to}};
}

ad_way ad_way_find(ad_type from, ad_type to) {
  ad_way way = ad_way_direct(from, to);
  for (int i = 0; i < TABLE_COUNT && (!way.count || states(&way)); i++) {
    if (table[i].from != ad_type_kind(from)) continue;
    ad_way two = over(from, table[i].to, to);
    if (two.count && (!way.count || !states(&two))) way = two;
  }
  return way;
}

const char *ad_way_print(const ad_way *way, char *buffer, size_t size) {
  ad_text text = ad_text_on(buffer, size);
  char from[AD_TYPE_TEXT_MAX], to[AD_TYPE_TEXT_MAX];
  for (int i = 0; i < way->count; i++)
    ad_text_add(&text, "%s%s %s->%s", i ? ", then " : "", ad_move_name(way->move[i]),
                ad_type_print(way->from[i], from, sizeof from), ad_type_print(way->to[i], to, sizeof to));
  return buffer;
}
