/* Derived mistakes at work: one transition of a program, found again each time it is recorded or executed, and done
 * wrongly there. Everything passes the two seams of transitions (base/seams.h); no product code knows of it. */
#ifndef CHECK_PLANTING_H
#define CHECK_PLANTING_H
#include "addend/parameter.h"
#include "array/transit.h"

/* What is done to a transition. */
#define AD_OPERATOR_LIST(X)                                                                                      \
  X(LEFT_OUT, "left_out")       /* not done */                                                                   \
  X(DOUBLED, "doubled")         /* done twice */                                                                 \
  X(AVERAGED, "averaged")       /* divided by the ranks of its group */                                          \
  X(MORE_AXES, "more_axes")     /* done over one axis more */                                                    \
  X(FEWER_AXES, "fewer_axes")   /* done over one axis fewer */                                                   \
  X(OTHER_GROUP, "other_group") /* done over other ranks: groups sheared along another axis, of the same size */ \
  X(BACKWARD_IDENTITY, "backward_identity")         /* its backward hands the gradient on as it is */            \
  X(BACKWARD_LOCAL, "backward_local")               /* its backward takes the own part, with zeros elsewhere */  \
  X(FIRST_MICROBATCH_ONLY, "first_microbatch_only") /* done in the first microbatch of a step only */            \
  X(ONCE_EVERYWHERE, "once_everywhere")             /* the copy of every rank counts */
typedef enum ad_operator {
#define AD_OPERATOR_CODE(code, name) AD_OPERATOR_##code,
  AD_OPERATOR_LIST(AD_OPERATOR_CODE)
#undef AD_OPERATOR_CODE
      AD_OPERATOR_COUNT
} ad_operator;
const char *ad_operator_name(ad_operator operator_);

typedef enum ad_place_phase { AD_PLACE_FORWARD, AD_PLACE_BACKWARD, AD_PLACE_STEP } ad_place_phase;

/* One transition of a program: on a tape, of a parameter's path, of a count or of a norm. */
typedef struct ad_place {
  char what[2 * AD_PARAM_NAME_SIZE]; /* the call site on a tape; the parameter of a path's step; "norm", "count ..." */
  ad_place_phase phase;
  ad_move move;
  ad_type from, to;
  ad_axes axes;    /* over which it goes */
  ad_axes named;   /* the axes that its mesh names: those that a program speaks of */
  ad_axes large;   /* the axes of its mesh with more than one rank */
  ad_axes same;    /* the axes along which ranks hand in the same */
  ad_axes pending; /* others on which the value is a pending sum */
  int64_t ranks;   /* in its group */
  int ordinal;     /* on its tape; -1 elsewhere */
  int is_segment;  /* a parameter's part of a packed array */
  int times;       /* executions in a step */
  int64_t rank;    /* one that has it */
} ad_place;
/* "blocks.0.attn.wq: all_reduce over dp_replicate". Returns buffer. */
const char *ad_place_print(const ad_place *place, char *buffer, size_t size);

/* A growing list of what passed. */
typedef struct ad_places {
  ad_place *list;
  size_t count, capacity;
  ad_status status; /* AD_MEMORY if the list is not whole */
} ad_places;
/* From now on every transition that is executed is listed, until the seams are lifted. */
void ad_places_watch(ad_places *places);
/* Those of `from`, which was watched on other ranks, that are not in `to`. */
ad_status ad_places_add(ad_places *to, const ad_places *from) AD_CHECKED;
void ad_places_release(ad_places *places);

/* A mistake: at `place` the operator, over or along `axis` where it has one. */
typedef struct ad_planting {
  ad_place place;
  ad_operator operator_;
  ad_axis axis;
  int in_record; /* 1: the types tell of it, as if the program had been written so; 0: they claim what did not happen */
  int executions, fired; /* in this step; at all */
  int of_constant;       /* fired on what carries no gradient */
} ad_planting;
/* From now on it is done, until the seams are lifted. In execution all arrays are f64 or i64. Borrows it. */
void ad_planting_begin(ad_planting *planting);

#endif
