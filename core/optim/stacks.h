/* Stacks: matrices with one shape, layout, dtype and group, which travel together from the layout in which they are
 * stored to the ranks that work on them, and back. A stack is an array [slots, rows, cols]; a round of it has one slot
 * for each rank that works on matrices, so S(0) gives each of these ranks one whole matrix. Which matrix is in which
 * slot is free, and decided by owners.h. Nothing here moves: whole.h does. */
#ifndef OPTIM_STACKS_H
#define OPTIM_STACKS_H
#include "optim/owners.h"
#include "optim/record.h"

/* A parameter that is updated as whole matrices. */
typedef struct ad_whole_param {
  size_t index; /* its number in the optimizer */
  const char *name;
  ad_array like; /* shape, layout and dtype; its `data` is not used */
  const ad_optimizer_record *record;
  const ad_optimizer_options *options; /* those of its group */
  ad_param_matrices matrices;
  ad_matrix_cuts cuts; /* for one process; owned by whole.c */
} ad_whole_param;

/* Matrix number `matrix` (counted from 0) of this rank's part of a parameter; `param` counts whole parameters. */
typedef struct ad_sheet {
  size_t param;
  int64_t matrix;
} ad_sheet;

/* One transition of a stack. One axis at a time, so that the way back restores the nesting of shards. */
typedef struct ad_stack_move {
  ad_move move;
  ad_axis axis;
  ad_type to;
} ad_stack_move;

enum { AD_STACK_MOVES = 2 * AD_AXIS_COUNT };

typedef struct ad_stack {
  const ad_optimizer_record *record;
  const ad_optimizer_options *options;
  ad_param_matrices matrices;
  ad_matrix_cuts cuts; /* borrowed from the parameters */
  ad_dtype dtype;
  size_t first, params; /* number of its first parameter (of the whole parameters), and how many it has */
  char *what;           /* the first parameter's name and how many others there are, for messages */
  ad_sheet *sheets;     /* in the program's order; the same on all ranks among which the stack moves */
  int64_t count;
  int64_t rows, cols;
  double operations; /* of one matrix */
  /* Operations of what this rank transforms at once: a matrix or, of a blockwise optimizer, its block of one. */
  double own_operations;
  ad_layout stored;     /* layout of [slots, rows, cols] in which shards are stored */
  ad_layout begin;      /* the same, but replicas have slots of their own: the layout before the first move */
  ad_layout dealt;      /* the layout in which ranks have whole matrices */
  ad_axes worked;       /* axes over which slots are dealt */
  int64_t ranks;        /* slots of a round */
  int64_t rounds, full; /* `full` of the rounds have a matrix in every slot */
  int64_t own;          /* the slot on which this rank works */
  int64_t *slot;        /* [rounds * ranks]: the number of the sheet, or -1 for an empty slot */
  ad_stack_move there[AD_STACK_MOVES], back[AD_STACK_MOVES];
  int there_count, back_count;
  ad_muon_way way;
  ad_way_cost cost[AD_WAYS]; /* by ad_muon_way; AD_WAY_CHEAPEST has none */
} ad_stack;

/* Returns the axes on which replicas of a parameter are that is stored in this layout. */
static inline ad_axes ad_replica_axes(const ad_layout *stored) {
  ad_axes axes = 0;
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++) {
    ad_type type = stored->type[axis];
    int several = ad_mesh_axis_size(stored->mesh, (ad_axis)axis) > 1;
    if (several && (type == AD_R || type == AD_I)) axes |= AD_AXES(axis);
  }
  return axes;
}

/* Makes the stacks of these parameters, those with the largest matrices first. All ranks of a parameter's mesh make the
 * same stacks in the same order. `differ`: the ranks' products may have different bits, so no two ranks may work on one
 * matrix. AD_INVALID if a way is asked for that does not work here, AD_TYPE if a layout is zigzag; AD_MEMORY. */
AD_INTERNAL ad_status ad_stacks_create(const ad_comm *comm, const ad_whole_param *params, size_t count, int differ,
                                       ad_stack **out, size_t *out_count) AD_CHECKED;
AD_INTERNAL void ad_stacks_destroy(ad_stack *stacks, size_t count); /* NULL allowed */

#endif
