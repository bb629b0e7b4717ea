/* What probably went wrong with a gradient. Several causes may give the same numbers (two axes of one size, one
 * factor): then all of them are listed and none is named as the cause, for a cause that is named is never another
 * one's. */
#ifndef DIFF_CAUSE_H
#define DIFF_CAUSE_H
#include <jansson.h>

#include "addend/mesh.h"
#include "base/internal.h"

typedef enum ad_cause_kind {
  AD_CAUSE_AVERAGED,
  AD_CAUSE_MISSING,
  AD_CAUSE_DOUBLED,
  AD_CAUSE_PARTIAL,
  AD_CAUSE_WRONG_GROUP,
  AD_CAUSE_REPLICAS_DIFFER,
  AD_CAUSE_ROUNDING,
  AD_CAUSE_UNKNOWN
} ad_cause_kind;
AD_INTERNAL const char *ad_cause_name(ad_cause_kind kind);

#define AD_MICROBATCHES "microbatches" /* the place of causes that say which */

typedef struct ad_cause {
  ad_cause_kind kind;
  ad_axes axes;
  double factor; /* NaN: none */
  char text[256];
  char place[64]; /* the bridge, pool or microbatches where it happened; "": none of them */
} ad_cause;

/* Those that fit, the simplest first. Lives in memory that processes share. */
enum { AD_CAUSES = 24 }; /* of 6 axes at most 20 sets have one size; what comes after the last place is left out */
typedef struct ad_causes {
  int count; /* 0: nothing is wrong */
  ad_cause list[AD_CAUSES];
} ad_causes;

/* Adds one that fits; its text follows as of printf. */
AD_INTERNAL ad_cause *ad_causes_add(ad_causes *causes, ad_cause_kind kind, ad_axes axes, double factor,
                                    const char *format, ...) AD_PRINTF(5, 6);
/* Takes over those that are there, and no other bytes. */
AD_INTERNAL void ad_causes_copy(ad_causes *out, const ad_causes *causes);

/* ---- in documents ---- */

/* One cause as documents have it: {kind, axes, factor, text, place}. `place`: "" becomes null. */
AD_INTERNAL json_t *ad_cause_document(const char *kind, const char *axes, double factor, const char *text,
                                      const char *place);
/* Sets `cause` and `possible_causes` from an array of documents of causes, which it takes: where there is one it is the
 * `cause`, where there are several `cause` is null and they are the `possible_causes`, which are [] otherwise. */
AD_INTERNAL void ad_cause_set(json_t *document, json_t *causes);
/* Whether a document with these keys names one or several. */
AD_INTERNAL int ad_cause_is_told(const json_t *document);
/* The text of the cause, or "possible causes: ...; ..." with as many as there is room for; "" where nothing is told.
 * Returns buffer. */
AD_INTERNAL const char *ad_cause_print(const json_t *document, char *buffer, size_t size);
/* The same of an array of documents of causes. */
const char *ad_causes_print(const json_t *causes, char *buffer, size_t size);

#endif
