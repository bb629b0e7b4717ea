/* Tables of actions: for each rank of a pipeline what it does in one step, in its order. A table is made by a generator
 * or by hand, lowered by passes, held to its laws, timed on paper, drawn, written and read again. Nothing here
 * communicates or computes: see docs/pipeline.md. */
#ifndef ADDEND_SCHEDULE_H
#define ADDEND_SCHEDULE_H
#include <stddef.h>
#include <stdint.h>
#include "addend/status.h"

#if defined(__cplusplus)
extern "C" {
#endif

/* The parts of a table, which are also the passes that insert them, in this order. */
typedef enum ad_table_part {
  AD_TABLE_COMPUTE = 1,    /* F, B, I, W */
  AD_TABLE_TRANSFERS = 2,  /* SEND_F, RECV_F, SEND_B, RECV_B, WAIT_SEND_F, WAIT_SEND_B */
  AD_TABLE_GATHERS = 4,    /* GATHER, RELEASE */
  AD_TABLE_REDUCTIONS = 8, /* REDUCE, WAIT_REDUCE */
  AD_TABLE_END = 16        /* SUMS, NORM, UPDATE */
} ad_table_part;

/* What an action names beside its kind. */
typedef enum ad_action_names {
  AD_NAMES_NOTHING,    /* SUMS: all ranks do it together */
  AD_NAMES_STAGE,      /* GATHER: a stage */
  AD_NAMES_MICROBATCH, /* F: a stage and a microbatch */
  AD_NAMES_MAYBE       /* REDUCE: a stage, and a microbatch where it is not the last reduction of the step */
} ad_action_names;

/* Every kind of action: X(code, name, name in PyTorch's tables or NULL, part, what it names). */
#define AD_ACTION_LIST(X)                                                                                 \
  X(AD_ACTION_F, "F", "F", AD_TABLE_COMPUTE, AD_NAMES_MICROBATCH) /* forward */                           \
  X(AD_ACTION_B, "B", "B", AD_TABLE_COMPUTE, AD_NAMES_MICROBATCH) /* the whole backward */                \
  X(AD_ACTION_I, "I", "I", AD_TABLE_COMPUTE, AD_NAMES_MICROBATCH) /* gradients of inputs */               \
  X(AD_ACTION_W, "W", "W", AD_TABLE_COMPUTE, AD_NAMES_MICROBATCH) /* gradients of weights */              \
  X(AD_ACTION_SEND_F, "SEND_F", "SEND_F", AD_TABLE_TRANSFERS, AD_NAMES_MICROBATCH)                        \
  X(AD_ACTION_RECV_F, "RECV_F", "RECV_F", AD_TABLE_TRANSFERS, AD_NAMES_MICROBATCH)                        \
  X(AD_ACTION_SEND_B, "SEND_B", "SEND_B", AD_TABLE_TRANSFERS, AD_NAMES_MICROBATCH)                        \
  X(AD_ACTION_RECV_B, "RECV_B", "RECV_B", AD_TABLE_TRANSFERS, AD_NAMES_MICROBATCH)                        \
  X(AD_ACTION_WAIT_SEND_F, "WAIT_SEND_F", "WAIT_SEND_F", AD_TABLE_TRANSFERS, AD_NAMES_MICROBATCH)         \
  X(AD_ACTION_WAIT_SEND_B, "WAIT_SEND_B", "WAIT_SEND_B", AD_TABLE_TRANSFERS, AD_NAMES_MICROBATCH)         \
  X(AD_ACTION_GATHER, "GATHER", "UNSHARD", AD_TABLE_GATHERS, AD_NAMES_STAGE)   /* parameters, whole */    \
  X(AD_ACTION_RELEASE, "RELEASE", "RESHARD", AD_TABLE_GATHERS, AD_NAMES_STAGE) /* what was gathered */    \
  X(AD_ACTION_REDUCE, "REDUCE", "REDUCE_GRAD", AD_TABLE_REDUCTIONS, AD_NAMES_MAYBE)                       \
  X(AD_ACTION_WAIT_REDUCE, "WAIT_REDUCE", "WAIT_REDUCE_GRAD", AD_TABLE_REDUCTIONS, AD_NAMES_STAGE)        \
  X(AD_ACTION_SUMS, "SUMS", NULL, AD_TABLE_END, AD_NAMES_NOTHING) /* losses and counts, over all ranks */ \
  X(AD_ACTION_NORM, "NORM", NULL, AD_TABLE_END, AD_NAMES_NOTHING) /* of the gradient, over all ranks */   \
  X(AD_ACTION_UPDATE, "UPDATE", NULL, AD_TABLE_END, AD_NAMES_STAGE)

typedef enum ad_action_kind {
#define AD_ACTION_CODE(code, name, torch, part, names) code,
  AD_ACTION_LIST(AD_ACTION_CODE)
#undef AD_ACTION_CODE
      AD_ACTION_COUNT
} ad_action_kind;

/* One action. A field that its kind does not name is 0, except `microbatch`, which is -1 in a REDUCE that is the
 * step's last of its stage. */
typedef struct ad_action {
  ad_action_kind kind;
  int32_t stage, microbatch;
  int32_t hop; /* of transfers: the stage at the other end, less `stage`; 0: the neighbour (+1 for SEND_F and RECV_B, -1
                  for SEND_B and RECV_F) */
} ad_action;

enum {
  AD_TABLE_RANKS_MAX = 4096,
  AD_TABLE_STAGES_MAX = 4096,
  AD_TABLE_CELLS_MAX = 1 << 20,   /* stages times microbatches, and edges times microbatches */
  AD_TABLE_ACTIONS_MAX = 1 << 22, /* of all ranks */
  AD_ACTION_TEXT_MAX = 64
};

AD_API const char *ad_action_name(ad_action_kind kind); /* "SEND_F"; "unknown" for a number that is no kind */
/* "1F3": stage, kind, microbatch; "0SEND_F3>2" where the other end is no neighbour. Returns buffer. */
AD_API const char *ad_action_print(const ad_action *action, char *buffer, size_t size);

AD_API int32_t ad_action_peer(const ad_action *action); /* of a transfer: the stage at its other end */

typedef struct ad_table ad_table;

/* A table of so many ranks, 1 to AD_TABLE_RANKS_MAX, without an action. A rank here is a place in the pipeline; where a
 * stage is cut over dp, tp or cp too, each of its ranks does the same. */
AD_API AD_CHECKED ad_status ad_table_create(int32_t ranks, ad_table **out);
AD_API void ad_table_destroy(ad_table *table);
/* Puts an action behind those that the rank has. AD_INVALID, table unchanged: the rank, the kind, the stage or the
 * microbatch is none, or there are more of them than a table takes. */
AD_API AD_CHECKED ad_status ad_table_add(ad_table *table, int32_t rank, const ad_action *action);
/* Says that stage `from` hands its value to stage `to`, a later one. Without a call stages are a chain: each hands to
 * the next. AD_INVALID: no such stages, or said twice. */
typedef enum ad_stage_way { AD_STAGE_BOTH_WAYS, AD_STAGE_ONE_WAY /* no gradient goes back */ } ad_stage_way;
AD_API AD_CHECKED ad_status ad_table_connect(ad_table *table, int32_t from, int32_t to, ad_stage_way way);

AD_API int32_t ad_table_rank_count(const ad_table *table);
AD_API int32_t ad_table_stage_count(const ad_table *table);      /* one more than the largest that is named */
AD_API int32_t ad_table_microbatch_count(const ad_table *table); /* the same */
AD_API size_t ad_table_action_count(const ad_table *table, int32_t rank);
/* The rank's action at this place, counted from 0; borrowed until the table changes. */
AD_API const ad_action *ad_table_action(const ad_table *table, int32_t rank, size_t place);
AD_API unsigned ad_table_parts(const ad_table *table); /* the ad_table_part of all actions, or-ed */

/* ---- making ---- */

typedef struct ad_table_shape {
  size_t size; /* sizeof(ad_table_shape) */
  int32_t stages, microbatches;
  int32_t ranks; /* 0: as many as stages. Stage s lies on rank s modulo ranks */
} ad_table_shape;

/* The compute of a schedule, by its name; any number of microbatches from 1 on.
 *   gpipe        every F, then every B; of several stages a rank one stage after the other
 *   1f1b         p - 1 - r forwards, then one F and one B in turns (Narayanan et al., Megatron-LM, 2021); one
 *                stage a rank
 *   interleaved  the same with several stages a rank (Megatron-LM's order); stages must be a multiple of ranks
 *   zb           ZB-H1 (Qi et al., Zero Bubble Pipeline Parallelism, 2023): I in place of B, and W later; one stage a
 *                rank
 *   accumulate   one rank has every stage: each microbatch forward and back, one after the other
 *   leads        each stage on a rank of its own, ahead of the next by one microbatch: bridges and pools
 * AD_INVALID: no such name, or stages and ranks that do not fit it; says what would. */
AD_API AD_CHECKED ad_status ad_table_make(const char *name, const ad_table_shape *shape, ad_table **out);
/* The names, one by one; NULL after the last. */
AD_API const char *ad_table_schedule_name(size_t index);
/* The order of phases of a program, stages here, in their order: rank_of[s] is where stage s lies, and it hands to the
 * stages that ad_table_connect was told of, or without them to the next. Whoever gives something to another rank is a
 * microbatch ahead. The table must have no action yet. */
AD_API AD_CHECKED ad_status ad_table_add_leads(ad_table *table, const int32_t *rank_of, int32_t stages,
                                               int32_t microbatches);

/* ---- lowering ---- */

typedef struct ad_table_lowering {
  size_t size;      /* sizeof(ad_table_lowering) */
  unsigned parts;   /* of ad_table_part: which passes run; 0: transfers, reductions and the end */
  int32_t gathered; /* stages of which a rank holds the gathered parameters at once at most; 0: any number */
  int reduces_each; /* 1: REDUCE behind each microbatch's addend too (ZeRO 2 and 3); 0: behind the last alone */
  int waits; /* 1: WAIT_SEND and WAIT_REDUCE too, for those that are inserted; torch.distributed.pipelining needs them
              */
} ad_table_lowering;
/* Inserts what the passes insert. options NULL: the defaults. AD_INVALID, table unchanged: it has that part already, or
 * breaks a law. */
AD_API AD_CHECKED ad_status ad_table_lower(ad_table *table, const ad_table_lowering *options);

/* ---- laws, times ---- */

/* What actions take, in any unit. A zero is the default: F 1, B 2, I 1, W 1, a transfer 0. A transfer's is what passes
 * from its SEND until it is there, beside what both ranks do: a RECV is begun where it stands, and what needs it waits.
 * All other kinds take no time. */
typedef struct ad_table_costs {
  size_t size; /* sizeof(ad_table_costs) */
  double f, b, i, w, transfer;
  const double *of_stage; /* factor of each stage's F, B, I and W, above 0; NULL: 1 */
  size_t stage_count;     /* of of_stage and of_action; as many as the table has stages */
  /* What each F, B, I and W takes itself, above 0 where the table has it, in place of all but `transfer`: in this order
   * of kinds [4, stages, microbatches]. NULL: as above. */
  const double *of_action;
  size_t microbatch_count; /* of of_action; as many as the table has microbatches */
} ad_table_costs;

typedef struct ad_table_options {
  size_t size;                 /* sizeof(ad_table_options) */
  int32_t in_flight;           /* activations in flight on a rank, at most; 0: any number */
  int buffered;                /* 1: a SEND never waits for its RECV; 0: the table must hold where it does, too */
  const ad_table_costs *costs; /* NULL: the defaults */
} ad_table_options;

/* The laws: X(code, name). */
#define AD_TABLE_LAW_LIST(X)                                                                      \
  X(AD_TABLE_LAW_STAGES, "stages")       /* every stage is there, and lies on one rank */         \
  X(AD_TABLE_LAW_ONCE, "once")           /* F once, then B once, or I and W once */               \
  X(AD_TABLE_LAW_PAIRS, "pairs")         /* sends and receives pair off, in one order */          \
  X(AD_TABLE_LAW_GIVEN, "given")         /* what an action needs stands before it */              \
  X(AD_TABLE_LAW_GATHERED, "gathered")   /* parameters are there where they are needed */         \
  X(AD_TABLE_LAW_REDUCED, "reduced")     /* a reduction behind the last addend, and once */       \
  X(AD_TABLE_LAW_END, "end")             /* sums, norm, update behind what they need, and once */ \
  X(AD_TABLE_LAW_PENDING, "pending")     /* nothing is under way at the end */                    \
  X(AD_TABLE_LAW_CIRCLE, "circle")       /* no rank waits in a circle */                          \
  X(AD_TABLE_LAW_IN_FLIGHT, "in_flight") /* activations below the limit */

typedef enum ad_table_law {
#define AD_TABLE_LAW_CODE(code, name) code,
  AD_TABLE_LAW_LIST(AD_TABLE_LAW_CODE)
#undef AD_TABLE_LAW_CODE
      AD_TABLE_LAW_COUNT
} ad_table_law;

/* Holds the table to its laws. Of parts that no action belongs to nothing is asked, except that an UPDATE asks for its
 * REDUCE. AD_INVALID: the sentence of the first law that is broken, with rank, place (counted from 0), action, and what
 * to do. options NULL: the defaults. */
AD_API AD_CHECKED ad_status ad_table_check(const ad_table *table, const ad_table_options *options);

/* What a table is worth, of one that holds. The bubble is idle time: 1 - (sum of all ranks' busy time) / (ranks x
 * makespan), busy being what F, B, I and W take. */
typedef struct ad_table_worth {
  size_t size; /* sizeof(ad_table_worth) */
  double makespan, bubble;
  int32_t in_flight, in_flight_rank; /* the most activations that a rank holds: F was, B or I was not; and which rank */
  int32_t deferred, deferred_rank;   /* the most operands that a rank holds for W: I was, W was not */
} ad_table_worth;
AD_API AD_CHECKED ad_status ad_table_measure(const ad_table *table, const ad_table_options *options,
                                             ad_table_worth *out);
/* When each action begins and ends, in the order of ad_table_action; `begin` and `end` have room for as many as all
 * ranks have, rank after rank. */
AD_API AD_CHECKED ad_status ad_table_times(const ad_table *table, const ad_table_options *options, double *begin,
                                           double *end);

/* ---- what people and programs read ---- */

/* The document of `addend schedule check --json` as text. *holds: no law is broken; AD_OK also when one is. Caller
 * frees with free(). */
AD_API AD_CHECKED ad_status ad_table_report(const ad_table *table, const ad_table_options *options, int *holds,
                                            char **json);
/* The same for people: the drawing, ranks as rows over time, `columns` wide at most (0: 100), and the summary. */
AD_API AD_CHECKED ad_status ad_table_text(const ad_table *table, const ad_table_options *options, ad_text_style style,
                                          size_t columns, int *holds, char **out);
/* The table as an SVG picture: ranks as rows, actions over time in tones, with their microbatch; transfers as thin
 * lines. `title`: above it. Only of a table that holds; AD_INVALID says which law is broken. A file of that name is
 * replaced when the new one is on disk. AD_IO names it. */
AD_API AD_CHECKED ad_status ad_table_picture(const ad_table *table, const ad_table_options *options, const char *title,
                                             const char *path);

typedef struct ad_table_drawing {
  size_t size;           /* sizeof(ad_table_drawing) */
  const char *title;     /* above the picture */
  const char *subtitle;  /* below the title; NULL: none */
  int64_t ranks_per_row; /* ranks of a world that each rank of the table stands for, one after the other; 0: 1 */
} ad_table_drawing;
/* The same picture as text. Caller frees with free(). */
AD_API AD_CHECKED ad_status ad_table_svg(const ad_table *table, const ad_table_options *options,
                                         const ad_table_drawing *drawing, char **out);

/* ---- files ---- */

/* Reads a table: JSON (docs/pipeline.md), or the CSV that torch.distributed.pipelining dumps, a row a rank. Of a CSV an
 * OVERLAP_F_B is read as its actions one after the other; *overlapped, NULL allowed, is how many there were. AD_INVALID
 * names file, line or rank, and place; AD_IO what cannot be read or is too large. */
AD_API AD_CHECKED ad_status ad_table_read(const char *path, ad_table **out, size_t *overlapped);
/* The same of a text of `size` bytes; `name` stands for the path in messages. */
AD_API AD_CHECKED ad_status ad_table_parse(const char *text, size_t size, const char *name, ad_table **out,
                                           size_t *overlapped);
/* The table as such a text. Caller frees with free(). CSV has no word for the end of a step, which is left out, nor for
 * stages that are no chain or reductions of one microbatch: AD_INVALID. */
AD_API AD_CHECKED ad_status ad_table_json(const ad_table *table, char **out);
AD_API AD_CHECKED ad_status ad_table_csv(const ad_table *table, char **out);

#if defined(__cplusplus)
}
#endif
#endif
