/* Sorts choices into slots, and gives callers access to a routing. */
#include "tensor/routing.h"

#include <math.h>
#include <string.h>

/* Returns 1 if a choice is not dropped: its token's number is below the expert's limit. */
static int is_kept(const ad_routing *routing, size_t choice) {
  if (!routing->limit) return 1;
  return routing->number[choice / routing->top_k] < routing->limit[routing->expert[choice]];
}

/* Sorts the choices by expert (a counting sort). */
void ad_routing_sort(ad_routing *routing) {
  size_t choices = routing->tokens * routing->top_k, first = 0;
  memset(routing->per_expert, 0, routing->experts * sizeof *routing->per_expert);
  for (size_t i = 0; i < choices; i++) routing->per_expert[routing->expert[i]] += (size_t)is_kept(routing, i);
  for (size_t e = 0; e < routing->experts; e++) {
    routing->next_slot[e] = first;
    first += routing->per_expert[e];
  }
  routing->slots = first;
  for (size_t i = 0; i < choices; i++) {
    if (!is_kept(routing, i)) continue;
    size_t slot = routing->next_slot[routing->expert[i]]++;
    routing->choice_of_slot[slot] = i;
    routing->token_of_slot[slot] = i / routing->top_k;
  }
}

/* ---- reading a routing: dropped tokens and choices ---- */

static size_t choices_of(const ad_routing *routing) {
  return routing && routing->expert ? routing->tokens * routing->top_k : 0;
}

size_t ad_routing_dropped(const ad_routing *routing) {
  size_t choices = choices_of(routing);
  return choices ? choices - routing->slots : 0;
}

const int32_t *ad_routing_choices(const ad_routing *routing, size_t *count) {
  if (ad_need(__func__, "count", (const void *const[]){count}, 1)) return NULL;
  *count = choices_of(routing);
  return *count ? routing->expert : NULL;
}

double ad_routing_margin(const ad_routing *routing) { return choices_of(routing) ? routing->margin : INFINITY; }
