/* What a decomposition found, measured on validation text. */
#ifndef DECOMPOSE_FINDINGS_H
#define DECOMPOSE_FINDINGS_H
#include "decompose/decompose.h"

/* How the target's products are masked in a pass over the text. TARGET: not at all. RANDOM: replaced by random
 * components, as many at each position as learned ones have an importance above 0. LARGEST: replaced by those random
 * components that have the largest effect at the position. */
enum {
  AD_PASS_TARGET,
  AD_PASS_MASKED,
  AD_PASS_ROUNDED,
  AD_PASS_STOCHASTIC,
  AD_PASS_UNMASKED,
  AD_PASS_RANDOM,
  AD_PASS_LARGEST,
  AD_PASSES
};
/* A component with an importance above this threshold counts as fully used. */
#define AD_IMPORTANCE_THRESHOLD 0.5

/* What is summed for each component over positions: its importance, the square of its importance, 1 if its importance
 * is above 0, and 1 if its importance is above the threshold. */
enum { AD_IMPORTANCE, AD_IMPORTANCE_SQUARE, AD_ABOVE_ZERO, AD_ABOVE_THRESHOLD, AD_PER_COMPONENT };

/* Sums over all ranks of the adversary; every rank has the same sums. */
typedef struct ad_findings {
  const ad_decomposition *decomposition;
  double *positions, *counted;  /* [1] each: the number of positions of the text, and of those whose next byte counts */
  double *entropy, *divergence; /* [AD_PASSES] each: cross-entropy of the next bytes that count, summed; KL(target ||
                                 * pass), summed over all positions */
  double *bytes;                /* [256]: how often each byte occurs as a next byte that counts */
  double *errors, *sizes;       /* [sites] each: ||W - V U||^2 and ||W||^2 */
  double *of_component;         /* [components, AD_PER_COMPONENT]: the sums for each component */
  double *sums;                 /* the memory of all arrays above */
  size_t sum_count;
  /* The components whose importance at each position is kept, to be shown: those of each site whose importance varies
   * most. */
  size_t *shown, shown_count;        /* indices of these components among those of all sites, and how many they are */
  int64_t samples;                   /* importances are kept for this many samples from the beginning of the text */
  double *shown_values, *shown_text; /* importances [shown_count, samples, seq]; text [samples, seq], which is in
                                      * front of them in the same memory */
} ad_findings;

/* Measures everything in `out`. Collective. Release `out` with ad_findings_release, also after a failure. */
ad_status ad_findings_collect(ad_decomposition *d, const ad_forward *forward, ad_findings *out) AD_CHECKED;
void ad_findings_release(ad_findings *findings);

/* Returns the mean over positions of one of a component's sums; `of` is AD_IMPORTANCE or another AD_ name of a sum. */
double ad_findings_mean(const ad_findings *findings, size_t component, int of);
/* Finds at most `most` components of the site for which `of` is largest and above 0, largest first. Returns how many it
 * found. */
size_t ad_findings_most(const ad_findings *findings, size_t site,
                        double (*of)(const ad_findings *findings, size_t component), size_t most, size_t *out);

#endif
