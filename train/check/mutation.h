/* Makes derived mutants: finds one transition of a program each time it is recorded or executed, and changes it. All
 * transitions pass two injection points (base/injection.h), where the change is made; the code that executes
 * transitions contains none of it. */
#ifndef CHECK_MUTATION_H
#define CHECK_MUTATION_H
#include "addend/parameter.h"
#include "array/transit.h"
#include "program/program.h"

/* The operators: how a mutation changes a transition. */
#define AD_OPERATOR_LIST(X)                                                                                      \
  X(LEFT_OUT, "left_out")       /* is not done */                                                                \
  X(DOUBLED, "doubled")         /* is done twice */                                                              \
  X(AVERAGED, "averaged")       /* divided by the ranks of its group */                                          \
  X(MORE_AXES, "more_axes")     /* done over one axis more */                                                    \
  X(FEWER_AXES, "fewer_axes")   /* done over one axis fewer */                                                   \
  X(OTHER_GROUP, "other_group") /* done over other ranks: groups sheared along another axis, of the same size */ \
  X(BACKWARD_IDENTITY, "backward_identity")         /* backward returns the gradient unchanged */                \
  X(BACKWARD_LOCAL, "backward_local")               /* backward takes this rank's part, zeros elsewhere */       \
  X(FIRST_MICROBATCH_ONLY, "first_microbatch_only") /* is done only in the first microbatch of a step */         \
  X(ONCE_EVERYWHERE, "once_everywhere")             /* the replica of every rank counts */
typedef enum ad_operator {
#define AD_OPERATOR_CODE(code, name) AD_OPERATOR_##code,
  AD_OPERATOR_LIST(AD_OPERATOR_CODE)
#undef AD_OPERATOR_CODE
      AD_OPERATOR_COUNT
} ad_operator;
const char *ad_operator_name(ad_operator operator_);
/* derived.c: returns 1 if the operator adds or drops one axis, or shears along one. */
int ad_operator_has_axis(ad_operator operator_);

typedef enum ad_place_phase { AD_PLACE_FORWARD, AD_PLACE_BACKWARD, AD_PLACE_STEP } ad_place_phase;

/* One transition of a program: on a tape, on a parameter's path from gradient to storage, of a count, or of a norm. */
typedef struct ad_place {
  /* for a transition on a tape: its call site; on a parameter's path: the name of the parameter; otherwise "norm" or
   * "count ..." */
  char what[AD_PROGRAM_NAME_SIZE];
  ad_place_phase phase;
  ad_move move;
  ad_type from, to;
  ad_axes axes;    /* the axes over which the transition goes */
  ad_axes named;   /* the axes that the transition's mesh names; each other axis has one rank */
  ad_axes large;   /* the axes of the transition's mesh that have more than one rank */
  ad_axes same;    /* the axes along which all ranks submit the same values */
  ad_axes partial; /* other axes, on which the value is Partial (P) */
  int64_t ranks;   /* number of ranks in the transition's group */
  int ordinal;     /* the transition's index on its tape; -1: it is on no tape */
  int is_segment;  /* 1: the transition is one parameter's part of a packed array */
  int times;       /* how often the transition is executed in a step */
  int64_t rank;    /* a rank that executes the transition */
} ad_place;
/* Describes the transition: "blocks.0.attn.wq: all_reduce over dp_replicate". Returns buffer. */
const char *ad_place_print(const ad_place *place, char *buffer, size_t size);

/* A growing list of transitions. */
typedef struct ad_places {
  ad_place *list;
  size_t count, capacity;
  ad_status status; /* AD_MEMORY if the list is incomplete */
} ad_places;
/* From this call on, adds every transition that is executed to the list, until the injection points are cleared. */
void ad_places_watch(ad_places *places);
/* Adds to `to` the transitions of `from`, which another rank listed, that `to` does not have. */
ad_status ad_places_add(ad_places *to, const ad_places *from) AD_CHECKED;
void ad_places_release(ad_places *places);

/* A mutation: the operator, applied to the transition at `place`; over or along `axis` if the operator needs an
 * axis. */
typedef struct ad_mutation {
  ad_place place;
  ad_operator operator_;
  ad_axis axis;
  /* 1: the mutation is recorded on the tape, as if the program were written so, and types show it; 0: it is made in the
   * execution only */
  int in_record;
  /* executions: how often the transition was executed in this step; fired: 1 if the mutation took effect at all */
  int executions, fired;
  int of_constant; /* 1: the value that is moved carries no gradient */
} ad_mutation;
/* Makes the mutation from this call on, until the injection points are cleared. Borrows `mutation`. A mutation of the
 * execution (in_record 0) needs all arrays to be f64 or i64. */
void ad_mutation_begin(ad_mutation *mutation);

#endif
