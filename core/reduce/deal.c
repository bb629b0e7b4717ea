#include "reduce/deal.h"

/* Divides the range `all` in proportion to weights whose sum is `of`, and returns the part with weight `own`; the parts
 * before this part have weight `before` together. */
static ad_span weighed(ad_span all, int64_t before, int64_t own, int64_t of) {
  int64_t first = (int64_t)((__int128)all.count * before / of);
  int64_t end = (int64_t)((__int128)all.count * (before + own) / of);
  return (ad_span){all.first + first, end - first};
}

static ad_span cut(ad_span all, int64_t i, int64_t parts) { return weighed(all, i, 1, parts); }

int ad_leaf_round_sends(const ad_leaf_deal *deal, int64_t round) {
  ad_sync sync = deal->sync[round];
  return sync == AD_SYNC_ALL || (sync == AD_SYNC_SHARD && deal->scatters);
}

/* Returns the rounds of the segment, or of the unit, that contains `round`. `ends` returns 1 for the last round of a
 * segment, or of a unit. */
static ad_span rounds_of(const ad_leaf_deal *deal, int64_t round, int (*ends)(const ad_leaf_deal *, int64_t)) {
  int64_t first = round, last = round;
  while (first > 0 && !ends(deal, first - 1)) first--;
  while (last < deal->rounds - 1 && !ends(deal, last)) last++;
  return (ad_span){first, last + 1 - first};
}

static int ends_segment(const ad_leaf_deal *deal, int64_t round) { return deal->sync[round] == AD_SYNC_ALL; }

ad_leaf_rounds ad_leaf_rounds_of(const ad_leaf_deal *deal, int64_t round) {
  return (ad_leaf_rounds){rounds_of(deal, round, ends_segment), rounds_of(deal, round, ad_leaf_round_sends)};
}

static ad_span of_segment(const ad_leaf_deal *deal, ad_span segment) {
  return weighed((ad_span){0, deal->leaves}, segment.first, segment.count, deal->rounds);
}

static ad_span of_unit(const ad_leaf_deal *deal, ad_leaf_rounds rounds, int64_t replica) {
  ad_span leaves = cut(of_segment(deal, rounds.segment), replica, deal->replicas);
  return weighed(leaves, rounds.unit.first - rounds.segment.first, rounds.unit.count, rounds.segment.count);
}

ad_span ad_leaves_in_rounds(const ad_leaf_deal *deal, ad_leaf_rounds rounds, int64_t replica, int64_t shard) {
  return cut(of_unit(deal, rounds, replica), shard, deal->shards);
}

ad_span ad_leaves_of_segment(const ad_leaf_deal *deal, int64_t round) {
  return of_segment(deal, rounds_of(deal, round, ends_segment));
}

ad_span ad_leaves_of_replica(const ad_leaf_deal *deal, int64_t replica, int64_t round) {
  return cut(ad_leaves_of_segment(deal, round), replica, deal->replicas);
}

ad_span ad_leaves_of_unit(const ad_leaf_deal *deal, int64_t replica, int64_t round) {
  return of_unit(deal, ad_leaf_rounds_of(deal, round), replica);
}

ad_span ad_leaves_of_position(const ad_leaf_deal *deal, int64_t replica, int64_t shard, int64_t round) {
  return ad_leaves_in_rounds(deal, ad_leaf_rounds_of(deal, round), replica, shard);
}

int64_t ad_leaf_of(const ad_leaf_deal *deal, int64_t replica, int64_t shard, int64_t round) {
  ad_leaf_rounds rounds = ad_leaf_rounds_of(deal, round);
  ad_span leaf = cut(ad_leaves_in_rounds(deal, rounds, replica, shard), round - rounds.unit.first, rounds.unit.count);
  return leaf.count ? leaf.first : -1;
}
