/* The known mistakes of ring attention and of positions on a cut sequence. Nothing here is part of what they do. */
#include "tensor/mistakes.h"

#include "tensor/attention.h"
#include "tensor/ring.h"

static void fire(void *context) { ((ad_mistake_scene *)context)->fired = 1; }

/* One turn too few: the last block of keys is never attended. */
static void leave_last_turn(void *context, void *passing) {
  ring_turn_passing *at = passing;
  if (!at->turn || at->turn + 1 != at->ring->members) return;
  at->columns->span_count = 0;
  fire(context);
}

/* The mask of a block that arrived is made of the own positions. */
static void mask_by_own_positions(void *context, void *passing) {
  ring_turn_passing *at = passing;
  if (!at->turn || at->own->count != at->columns->count) return;
  *at->columns = *at->own;
  fire(context);
}

/* What other ranks gathered for a block is overwritten, not added to. */
static void forget_gathered(void *context, void *passing) {
  *(int *)passing = 0;
  fire(context);
}

/* Each rank counts its positions from 0. */
static void count_from_zero(void *context, void *passing) {
  positions *at = passing;
  int64_t next = 0;
  for (int i = 0; i < at->span_count; i++) {
    if (at->span[i].first != next) fire(context);
    at->span[i].first = next;
    next += at->span[i].count;
  }
}

static const ad_mistake mistakes[] = {
    {.name = "ring-without-last-turn",
     .words = "the last block of keys that comes around the ring is not attended",
     .needs = AD_NEED_TOKENS | AD_NEED_RING,
     .at = {{AD_SEAM_RING_TURN, leave_last_turn}}},
    {.name = "ring-masked-by-own-positions",
     .words = "a block of keys that arrived is masked by the positions of the rank's own",
     .needs = AD_NEED_TOKENS | AD_NEED_RING,
     .at = {{AD_SEAM_RING_TURN, mask_by_own_positions}}},
    {.name = "ring-gradients-overwritten",
     .catalogue = 5,
     .words = "the gradient of keys holds the addend of one rank",
     .needs = AD_NEED_TOKENS | AD_NEED_RING,
     .at = {{AD_SEAM_RING_GATHERED, forget_gathered}}},
    {.name = "positions-from-zero",
     .words = "each rank of a cut sequence counts its positions from 0",
     .needs = AD_NEED_TOKENS | AD_NEED_CUT_SEQUENCE,
     .at = {{AD_SEAM_POSITIONS, count_from_zero}}},
};

const ad_mistake *ad_tensor_mistakes(size_t *count) {
  *count = sizeof mistakes / sizeof *mistakes;
  return mistakes;
}
