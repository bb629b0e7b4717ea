/* The probable causes of a wrong gradient. Several causes may give the same numbers (two axes of one size give one
 * factor). Then all of them are listed as possible causes, and none is named as the cause: a cause that is named must
 * never be wrong. */
#ifndef DIFF_CAUSE_H
#define DIFF_CAUSE_H
#include <jansson.h>

#include "addend/mesh.h"
#include "base/internal.h"
#include "say/causes.h"

/* The verdict on a parameter, and on the whole dump, from the best to the worst. */
typedef enum ad_answer { AD_ANSWER_RIGHT, AD_ANSWER_CANNOT_TELL, AD_ANSWER_WRONG } ad_answer;

/* A kind's row in the table of causes.h, which explains the fields. */
typedef struct ad_cause_row {
  const char *name;
  ad_answer answer;
  ad_cause_kind checked;
  int counted;
} ad_cause_row;

AD_INTERNAL const ad_cause_row *ad_cause_row_of(ad_cause_kind kind);
AD_INTERNAL const char *ad_cause_name(ad_cause_kind kind);
/* Returns the kind that a document calls `name`, or AD_CAUSE_UNKNOWN if no kind is called so or `name` is NULL. */
AD_INTERNAL ad_cause_kind ad_cause_named(const char *name);

#define AD_MICROBATCHES "microbatches" /* the value of the field `place` of a cause whose text names the microbatches */

/* Why a cause names no axis. X(code, word for documents, clause for people); the clause follows "no axis:". */
#define AD_NO_AXIS_LIST(X)                                                                           \
  X(AD_AXIS_IS_NAMED, "axis_is_named", "")                                                           \
  X(AD_NO_AXIS_NOT_SHOWN, "not_shown", "nothing that was measured shows which")                      \
  X(AD_NO_AXIS_MICROBATCHES, "microbatches", "it goes by microbatches")                              \
  X(AD_NO_AXIS_ROUNDING, "rounding", "a rounding does not show between which ranks it happened")     \
  X(AD_NO_AXIS_EVERY_ADDEND, "every_addend", "all counts of addends that are known are the same")    \
  X(AD_NO_AXIS_REPLICAS_AGREE, "replicas_agree", "no replicas differ")                               \
  X(AD_NO_AXIS_NO_GROUP, "no_group", "no group of ranks has that size")                              \
  X(AD_NO_AXIS_FORMULA, "formula", "a formula is between transitions, which have them")              \
  X(AD_NO_AXIS_POOLS, "pools", "pools have none in common")                                          \
  X(AD_NO_AXIS_NO_REPLICAS, "no_replicas", "there are no replicas along any")                        \
  X(AD_NO_AXIS_SEVERAL, "several", "the possible causes are not all on the same")                    \
  X(AD_NO_AXIS_NONE_NAMED, "none_named", "none of the possible causes is on one")                    \
  X(AD_NO_AXIS_NO_CAUSE, "no_cause", "no cause was found")                                           \
  X(AD_NO_AXIS_PROTOCOL, "protocol", "the collective that did not match reports only its own group") \
  X(AD_NO_AXIS_NO_NUMBER, "no_number", "no number shows it")
typedef enum ad_no_axis {
#define AD_NO_AXIS_CODE(code, name, clause) code,
  AD_NO_AXIS_LIST(AD_NO_AXIS_CODE)
#undef AD_NO_AXIS_CODE
} ad_no_axis;

/* One possible explanation of a wrong gradient. */
typedef struct ad_cause {
  ad_cause_kind kind;
  ad_axes axes;
  double factor; /* gradient over expected gradient; NaN: unknown */
  char text[256];
  char place[64];     /* the bridge, pool or microbatches where the bug is; "": unknown */
  ad_no_axis no_axis; /* why the cause names no axes; 0: it names axes, or its kind or place is reason enough */
} ad_cause;

/* All causes that explain the numbers, the simplest first. The struct is in memory that processes share, so it contains
 * no pointers. */
enum { AD_CAUSES = 24 }; /* 6 axes have at most 20 sets of one size; causes beyond this many are dropped */
typedef struct ad_causes {
  int count; /* 0: nothing is wrong */
  ad_cause list[AD_CAUSES];
} ad_causes;

/* Adds a cause, whose text is formatted as by printf. Returns the cause, or scratch memory if the list is full. */
AD_INTERNAL ad_cause *ad_causes_add(ad_causes *causes, ad_cause_kind kind, ad_axes axes, double factor,
                                    const char *format, ...) AD_PRINTF(5, 6);
/* Copies only the entries of `causes` that are used. */
AD_INTERNAL void ad_causes_copy(ad_causes *out, const ad_causes *causes);

/* ---- JSON documents of causes ---- */

/* Makes the JSON object {kind, axes, factor, text, place} of one cause. An empty `place`, and a factor that is not
 * finite, become null. */
AD_INTERNAL json_t *ad_cause_document(const char *kind, const char *axes, double factor, const char *text,
                                      const char *place);
/* Sets the keys `cause` and `possible_causes` of a document from an array of cause documents, and takes ownership of
 * the array. A single cause becomes `cause`, and `possible_causes` is []. Several causes become `possible_causes`, and
 * `cause` is null. */
AD_INTERNAL void ad_cause_set(json_t *document, json_t *causes);
/* Returns 1 if a document names a cause or possible causes. */
AD_INTERNAL int ad_cause_is_reported(const json_t *document);
/* Prints the text of a document's cause; or "possible causes: ...; ..." with as many as fit; or "" if the document
 * names no cause. Returns buffer. */
AD_INTERNAL const char *ad_cause_print(const json_t *document, char *buffer, size_t size);
/* Prints an array of cause documents, in the way of ad_cause_print. */
const char *ad_causes_print(const json_t *causes, char *buffer, size_t size);

#endif
