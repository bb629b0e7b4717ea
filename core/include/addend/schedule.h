/* Tables of actions: what each rank of a pipeline does in one step, in order. A table is made by the name of a schedule
 * or action by action, lowered by passes that insert further actions, checked against laws, timed by simulation, drawn,
 * written and read. Nothing here communicates or computes; see core/docs/pipeline.md.
 *
 * For users, and whoever writes tables of pipelines. Only one thread at a time may use a table. */
#ifndef ADDEND_SCHEDULE_H
#define ADDEND_SCHEDULE_H
#include <stddef.h>
#include <stdint.h>
#include "addend/status.h"

#if defined(__cplusplus)
extern "C" {
#endif

/* The parts of a table. For each part but the first there is a pass of ad_table_lower that inserts the part's actions;
 * passes run in this order. */
typedef enum ad_table_part {
  AD_TABLE_COMPUTE = 1,    /* forward and backward: F, B, I, W */
  AD_TABLE_TRANSFERS = 2,  /* sends and receives: SEND_F, RECV_F, SEND_B, RECV_B, WAIT_SEND_F, WAIT_SEND_B */
  AD_TABLE_GATHERS = 4,    /* gathers of parameters: GATHER, RELEASE */
  AD_TABLE_REDUCTIONS = 8, /* reductions of gradients: REDUCE, WAIT_REDUCE */
  AD_TABLE_END = 16        /* the end of a step: SUMS, NORM, UPDATE */
} ad_table_part;

/* Which of the fields stage and microbatch the actions of a kind use. */
typedef enum ad_action_names {
  AD_NAMES_NOTHING,    /* neither: all ranks perform the action together (SUMS) */
  AD_NAMES_STAGE,      /* the stage (GATHER) */
  AD_NAMES_MICROBATCH, /* the stage and the microbatch (F) */
  /* the stage, and the microbatch unless the action is the stage's last reduction of the step (REDUCE) */
  AD_NAMES_MAYBE
} ad_action_names;

/* All kinds of action: X(code, name, name in PyTorch's tables or NULL if PyTorch has no such action, part, fields in
 * use). */
#define AD_ACTION_LIST(X)                                                                                    \
  X(AD_ACTION_F, "F", "F", AD_TABLE_COMPUTE, AD_NAMES_MICROBATCH) /* forward */                              \
  X(AD_ACTION_B, "B", "B", AD_TABLE_COMPUTE, AD_NAMES_MICROBATCH) /* the full backward */                    \
  X(AD_ACTION_I, "I", "I", AD_TABLE_COMPUTE, AD_NAMES_MICROBATCH) /* gradients of inputs */                  \
  X(AD_ACTION_W, "W", "W", AD_TABLE_COMPUTE, AD_NAMES_MICROBATCH) /* gradients of weights */                 \
  X(AD_ACTION_SEND_F, "SEND_F", "SEND_F", AD_TABLE_TRANSFERS, AD_NAMES_MICROBATCH)                           \
  X(AD_ACTION_RECV_F, "RECV_F", "RECV_F", AD_TABLE_TRANSFERS, AD_NAMES_MICROBATCH)                           \
  X(AD_ACTION_SEND_B, "SEND_B", "SEND_B", AD_TABLE_TRANSFERS, AD_NAMES_MICROBATCH)                           \
  X(AD_ACTION_RECV_B, "RECV_B", "RECV_B", AD_TABLE_TRANSFERS, AD_NAMES_MICROBATCH)                           \
  X(AD_ACTION_WAIT_SEND_F, "WAIT_SEND_F", "WAIT_SEND_F", AD_TABLE_TRANSFERS, AD_NAMES_MICROBATCH)            \
  X(AD_ACTION_WAIT_SEND_B, "WAIT_SEND_B", "WAIT_SEND_B", AD_TABLE_TRANSFERS, AD_NAMES_MICROBATCH)            \
  X(AD_ACTION_GATHER, "GATHER", "UNSHARD", AD_TABLE_GATHERS, AD_NAMES_STAGE)   /* gathers full parameters */ \
  X(AD_ACTION_RELEASE, "RELEASE", "RESHARD", AD_TABLE_GATHERS, AD_NAMES_STAGE) /* frees them again */        \
  X(AD_ACTION_REDUCE, "REDUCE", "REDUCE_GRAD", AD_TABLE_REDUCTIONS, AD_NAMES_MAYBE)                          \
  X(AD_ACTION_WAIT_REDUCE, "WAIT_REDUCE", "WAIT_REDUCE_GRAD", AD_TABLE_REDUCTIONS, AD_NAMES_STAGE)           \
  X(AD_ACTION_SUMS, "SUMS", NULL, AD_TABLE_END, AD_NAMES_NOTHING) /* losses and counts, over all ranks */    \
  X(AD_ACTION_NORM, "NORM", NULL, AD_TABLE_END, AD_NAMES_NOTHING) /* gradient norm, over all ranks */        \
  X(AD_ACTION_UPDATE, "UPDATE", NULL, AD_TABLE_END, AD_NAMES_STAGE)

typedef enum ad_action_kind {
#define AD_ACTION_CODE(code, name, torch, part, names) code,
  AD_ACTION_LIST(AD_ACTION_CODE)
#undef AD_ACTION_CODE
      AD_ACTION_COUNT
} ad_action_kind;

/* One action. Fields that its kind does not use are 0. `microbatch` is -1 in the last REDUCE of a stage in the step. */
typedef struct ad_action {
  ad_action_kind kind;
  int32_t stage, microbatch;
  /* For transfers: the number of the peer's stage minus `stage`; 0 if the peer is the neighbour (+1 for SEND_F and
   * RECV_B, -1 for SEND_B and RECV_F). */
  int32_t hop;
} ad_action;

enum {
  AD_TABLE_RANKS_MAX = 4096,
  AD_TABLE_STAGES_MAX = 4096,
  /* limit of stages times microbatches, and of the number of edges between stages times microbatches */
  AD_TABLE_CELLS_MAX = 1 << 20,
  AD_TABLE_ACTIONS_MAX = 1 << 22, /* actions of all ranks together */
  AD_ACTION_TEXT_MAX = 64
};

AD_API const char *ad_action_name(ad_action_kind kind); /* "SEND_F"; "unknown" for a number that is no kind */
/* Prints an action: "1F3" is stage, kind, microbatch; "0SEND_F3>2" also names the peer's stage, which is printed only
 * if it is no neighbour. Returns buffer. */
AD_API const char *ad_action_print(const ad_action *action, char *buffer, size_t size);

AD_API int32_t ad_action_peer(const ad_action *action); /* the stage of a transfer's peer */

typedef struct ad_table ad_table;

/* Creates a table without actions for 1 to AD_TABLE_RANKS_MAX ranks. A rank here is a position in the pipeline: if a
 * stage is also sharded over dp, tp or cp, all ranks of the stage perform the same actions. */
AD_API AD_CHECKED ad_status ad_table_create(int32_t ranks, ad_table **out);
AD_API void ad_table_destroy(ad_table *table);
/* Appends an action to a rank's list. AD_INVALID, with the table unchanged, if the rank, kind, stage or microbatch does
 * not exist, or if the table has as many actions as it may have. */
AD_API AD_CHECKED ad_status ad_table_add(ad_table *table, int32_t rank, const ad_action *action);
/* ad_table_connect declares that stage `from` passes its value to the later stage `to`; `way` says whether a gradient
 * goes back. Without any call the stages are a chain: each passes its value to the next. AD_INVALID: there are no such
 * stages, or the pair was declared before. */
typedef enum ad_stage_way { AD_STAGE_BOTH_WAYS, AD_STAGE_ONE_WAY /* no gradient goes back */ } ad_stage_way;
AD_API AD_CHECKED ad_status ad_table_connect(ad_table *table, int32_t from, int32_t to, ad_stage_way way);

AD_API int32_t ad_table_rank_count(const ad_table *table);
AD_API int32_t ad_table_stage_count(const ad_table *table); /* largest stage of an action or a connection, plus 1 */
/* largest microbatch of an action, plus 1 */
AD_API int32_t ad_table_microbatch_count(const ad_table *table);
AD_API size_t ad_table_action_count(const ad_table *table, int32_t rank);
/* Returns the action with index `place` (from 0) of the rank's list; borrowed until the table changes. */
AD_API const ad_action *ad_table_action(const ad_table *table, int32_t rank, size_t place);
AD_API unsigned ad_table_parts(const ad_table *table); /* the ad_table_part bits of all actions, or-ed */

/* ---- making tables by the name of a schedule ---- */

typedef struct ad_table_shape {
  size_t size; /* sizeof(ad_table_shape) */
  int32_t stages, microbatches;
  int32_t ranks; /* 0: as many as stages. Stage s lies on rank s modulo ranks. */
} ad_table_shape;

/* Makes the compute actions of a schedule by the schedule's name, for 1 or more microbatches. p is the number of ranks,
 * r a rank:
 *   gpipe        every F, then every B; with several stages on a rank, one stage after another
 *   1f1b         p - 1 - r times F, then one F and one B alternately (Narayanan et al., Megatron-LM, 2021); one stage
 *                on each rank
 *   interleaved  like 1f1b with several stages on each rank (in Megatron-LM's order); the number of stages must be a
 *                multiple of ranks
 *   zb           ZB-H1 (Qi et al., Zero Bubble Pipeline Parallelism, 2023): I instead of B, and W later; one stage
 *                on each rank
 *   accumulate   one rank has every stage: each microbatch goes forward and back, one after another
 *   leads        each stage on its own rank, one microbatch ahead of the next stage: for bridges and pools
 * AD_INVALID: there is no schedule of this name, or the numbers of stages and ranks do not fit the schedule; the
 * message says what would fit. */
AD_API AD_CHECKED ad_status ad_table_make(const char *name, const ad_table_shape *shape, ad_table **out);
/* Returns the name of schedule number `index`; NULL if there are no more. */
AD_API const char *ad_table_schedule_name(size_t index);
/* Adds the compute actions of a program whose phases are the stages, in the program's order. Stage s lies on rank
 * rank_of[s] and passes its value to the stages that ad_table_connect declared, or else to the next stage. A stage that
 * passes a value to another rank is one microbatch ahead of that rank. The table must not have an action yet. */
AD_API AD_CHECKED ad_status ad_table_add_leads(ad_table *table, const int32_t *rank_of, int32_t stages,
                                               int32_t microbatches);

/* ---- lowering: inserting transfers, gathers, reductions and the end of the step ---- */

typedef struct ad_table_lowering {
  size_t size;      /* sizeof(ad_table_lowering) */
  unsigned parts;   /* ad_table_part bits of the passes to run; 0: transfers, reductions and the end */
  int32_t gathered; /* the most stages whose gathered parameters a rank holds at the same time; 0: no limit */
  /* 1: a REDUCE after each microbatch's backward (ZeRO 2 and 3); 0: a REDUCE only after the last microbatch's */
  int reduces_each;
  /* 1: also insert a WAIT_SEND and a WAIT_REDUCE for each inserted SEND and REDUCE; torch.distributed.pipelining needs
   * them */
  int waits;
} ad_table_lowering;
/* Runs the passes on the table. NULL `options` mean the defaults. AD_INVALID, with the table unchanged, if the table
 * already has a part that a pass would insert, or breaks a law. */
AD_API AD_CHECKED ad_status ad_table_lower(ad_table *table, const ad_table_lowering *options);

/* ---- checking tables against the laws, and timing them ---- */

/* How long actions take, in any unit. A zero means the default: F 1, B 2, I 1, W 1, a transfer 0. A transfer takes its
 * time from its SEND until the value arrives, while both ranks continue to work: a RECV only starts the wait, and the
 * action that needs the value waits for it. All other kinds take no time. */
typedef struct ad_table_costs {
  size_t size; /* sizeof(ad_table_costs) */
  double f, b, i, w, transfer;
  const double *of_stage; /* a factor above 0 for each stage's F, B, I and W; NULL: 1 */
  size_t stage_count;     /* number of the table's stages, for which of_stage and of_action have values */
  /* The time of each single F, B, I and W: an array [4, stages, microbatches] in this order of kinds, with times above
   * 0 for all actions that the table has. It replaces all times above but `transfer`. NULL: the times above are
   * used. */
  const double *of_action;
  size_t microbatch_count; /* number of the table's microbatches, for which of_action has values */
} ad_table_costs;

/* How the program that executes the table matches sends and receives; law `pairs` depends on it. */
typedef enum ad_table_pairs {
  /* AD_TABLE_PAIRS_RANKS if the table was read from a CSV, as PyTorch executes, else AD_TABLE_PAIRS_EDGE */
  AD_TABLE_PAIRS_OF_SOURCE,
  AD_TABLE_PAIRS_EDGE, /* in order on each edge and direction, because each edge and direction has its own tag */
  /* in the order of all messages from one rank to another, whatever their stages, because messages have no tags */
  AD_TABLE_PAIRS_RANKS
} ad_table_pairs;

typedef struct ad_table_options {
  size_t size;       /* sizeof(ad_table_options) */
  int32_t in_flight; /* the most activations in flight on a rank; 0: no limit */
  int buffered; /* 1: a SEND never waits for its RECV; 0: the table must be right even if a SEND waits for its RECV */
  const ad_table_costs *costs; /* NULL: the defaults */
  ad_table_pairs pairs;        /* how transfers are matched */
} ad_table_options;

/* The laws: X(code, name). */
#define AD_TABLE_LAW_LIST(X)                                                                  \
  X(AD_TABLE_LAW_STAGES, "stages")       /* every stage exists and lies on one rank */        \
  X(AD_TABLE_LAW_ONCE, "once")           /* F once, then B once or I and W once */            \
  X(AD_TABLE_LAW_PAIRS, "pairs")         /* sends and receives match, in one order */         \
  X(AD_TABLE_LAW_GIVEN, "given")         /* what an action needs comes before it */           \
  X(AD_TABLE_LAW_GATHERED, "gathered")   /* parameters are gathered when needed */            \
  X(AD_TABLE_LAW_REDUCED, "reduced")     /* one reduction, after the last addend */           \
  X(AD_TABLE_LAW_END, "end")             /* sums, norm, update: once, after what they need */ \
  X(AD_TABLE_LAW_PENDING, "pending")     /* nothing is unfinished at the end */               \
  X(AD_TABLE_LAW_CIRCLE, "circle")       /* no rank waits in a circle */                      \
  X(AD_TABLE_LAW_IN_FLIGHT, "in_flight") /* activations within the limit */

typedef enum ad_table_law {
#define AD_TABLE_LAW_CODE(code, name) code,
  AD_TABLE_LAW_LIST(AD_TABLE_LAW_CODE)
#undef AD_TABLE_LAW_CODE
      AD_TABLE_LAW_COUNT
} ad_table_law;

/* Checks a table against the laws. The laws of a part without actions are not checked, except that an UPDATE needs its
 * REDUCE. If a law is broken, AD_INVALID with a sentence about the first one: rank, place (counted from 0), action, and
 * what to do. NULL `options` mean the defaults. */
AD_API AD_CHECKED ad_status ad_table_check(const ad_table *table, const ad_table_options *options);

/* Measures of a table that breaks no law. The bubble is the share of idle time: 1 - (sum of all ranks' busy time) /
 * (ranks x makespan), where F, B, I and W are busy time. */
typedef struct ad_table_worth {
  size_t size; /* sizeof(ad_table_worth) */
  double makespan, bubble;
  /* the most activations that a rank holds at a time (each from its F to its B or I), and the rank */
  int32_t in_flight, in_flight_rank;
  /* the most operands that a rank keeps for W at a time (each from its I to its W), and the rank */
  int32_t deferred, deferred_rank;
} ad_table_worth;
/* Measures a table by simulating it. AD_INVALID if it breaks a law. NULL `options` mean the defaults. */
AD_API AD_CHECKED ad_status ad_table_measure(const ad_table *table, const ad_table_options *options,
                                             ad_table_worth *out);
/* Fills in the times at which each action begins and ends, in the order of ad_table_action, rank after rank. The caller
 * gives `begin` and `end` memory for the actions of all ranks. */
AD_API AD_CHECKED ad_status ad_table_times(const ad_table *table, const ad_table_options *options, double *begin,
                                           double *end);

/* ---- reports and pictures of tables ---- */

/* *json: the document that `addend schedule check --json` prints. *holds: 1 if no law is broken, else 0; the function
 * returns AD_OK in either case. Caller frees *json with free(). */
AD_API AD_CHECKED ad_status ad_table_report(const ad_table *table, const ad_table_options *options, int *holds,
                                            char **json);
/* Like ad_table_report, as a text for people: a drawing with ranks as rows over time, at most `columns` wide (0: 100),
 * and a summary. */
AD_API AD_CHECKED ad_status ad_table_text(const ad_table *table, const ad_table_options *options, ad_text_style style,
                                          size_t columns, int *holds, char **out);
/* Writes the table as an SVG picture: ranks as rows; actions over time, in a tone for each kind, with their microbatch;
 * transfers as thin lines; `title` at the top. If the table breaks a law, AD_INVALID names it. An existing file is
 * replaced when the new one is on disk. AD_IO names the file. */
AD_API AD_CHECKED ad_status ad_table_picture(const ad_table *table, const ad_table_options *options, const char *title,
                                             const char *path);

typedef struct ad_table_drawing {
  size_t size;           /* sizeof(ad_table_drawing) */
  const char *title;     /* above the picture */
  const char *subtitle;  /* below the title; NULL: none */
  int64_t ranks_per_row; /* how many consecutive ranks of the world each rank of the table represents; 0: 1 */
} ad_table_drawing;
/* Makes the picture of ad_table_picture as a text. Caller frees *out with free(). */
AD_API AD_CHECKED ad_status ad_table_svg(const ad_table *table, const ad_table_options *options,
                                         const ad_table_drawing *drawing, char **out);

/* ---- reading and writing tables as JSON and CSV ---- */

/* Reads a table from JSON (core/docs/pipeline.md) or from the CSV that torch.distributed.pipelining dumps, with one row
 * for each rank. An OVERLAP_F_B in a CSV is read as its actions one after another; *overlapped (unless NULL) is the
 * number of OVERLAP_F_B. AD_INVALID names file, line or rank, and place; AD_IO names a file that cannot be read or is
 * too large. */
AD_API AD_CHECKED ad_status ad_table_read(const char *path, ad_table **out, size_t *overlapped);
/* Like ad_table_read, but from a text of `size` bytes; messages have `name` in place of the path. */
AD_API AD_CHECKED ad_status ad_table_parse(const char *text, size_t size, const char *name, ad_table **out,
                                           size_t *overlapped);
/* These functions write the table as JSON or as CSV. Caller frees *out with free(). A CSV cannot express the end of a
 * step, which is left out, nor stages that are no chain, nor reductions of one microbatch: for these AD_INVALID. */
AD_API AD_CHECKED ad_status ad_table_json(const ad_table *table, char **out);
AD_API AD_CHECKED ad_status ad_table_csv(const ad_table *table, char **out);

#if defined(__cplusplus)
}
#endif
#endif
