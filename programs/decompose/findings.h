/* The findings of a decomposition, counted on validation text. */
#ifndef DECOMPOSE_FINDINGS_H
#define DECOMPOSE_FINDINGS_H
#include "decompose/decompose.h"

/* How the target's components are masked in a pass over the text. TARGET: not masked (the target itself). RANDOM:
 * random components; at each position as many as have an importance above 0. LARGEST: of the random components,
 * those with the largest effect at the position. */
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
/* Importances above this are rounded up to 1. */
#define AD_IMPORTANCE_THRESHOLD 0.5

/* Numbers of a component: the sums over positions of its importance and of the importance's square; the number of
 * positions where the importance is above 0, and above the threshold. */
enum { AD_IMPORTANCE, AD_IMPORTANCE_SQUARE, AD_ABOVE_ZERO, AD_ABOVE_THRESHOLD, AD_PER_COMPONENT };

/* Sums over the ranks of the adversary, which have all values; the same on all ranks. */
typedef struct ad_findings {
  const ad_decomposition *decomposition;
  double *positions, *counted;  /* [1]: positions of the text; positions whose next byte counts */
  double *entropy, *divergence; /* [AD_PASSES]: summed cross-entropy of the next bytes that count; summed KL(target ||
                                 * pass) at all positions */
  double *bytes;                /* [256]: how often each byte is a next byte that counts */
  double *errors, *sizes;       /* [sites]: ||W - V U||^2, ||W||^2 */
  double *of_component;         /* [components, AD_PER_COMPONENT] */
  double *sums;                 /* all arrays above in one piece of memory */
  size_t sum_count;
  /* Components whose importance is kept for each position: for each site, those whose importance varies most. */
  size_t *shown, shown_count;        /* numbers among the components of all sites */
  int64_t samples;                   /* the first samples of the text, for which importances are kept */
  double *shown_values, *shown_text; /* importances [shown_count, samples, seq]; text [samples, seq], which is before
                                      * them in memory */
} ad_findings;

/* Collective. Release `out` with ad_findings_release, also after a failure. */
ad_status ad_findings_collect(ad_decomposition *d, const ad_forward *forward, ad_findings *out) AD_CHECKED;
void ad_findings_release(ad_findings *findings);

/* The mean over positions of a component's number `of` (AD_IMPORTANCE and so on). */
double ad_findings_mean(const ad_findings *findings, size_t component, int of);
/* Finds the site's components for which `of` is largest and above 0, largest first; returns how many, at most
 * `most`. */
size_t ad_findings_most(const ad_findings *findings, size_t site,
                        double (*of)(const ad_findings *findings, size_t component), size_t most, size_t *out);

#endif
