/* Programs: what is trained. A program is a record: the recipe keys that it brings, the modules that it has, its data,
 * the phases of a microbatch, its counts and losses. The step function (train.h) knows laws; a program knows a model.
 */
#ifndef ADDEND_PROGRAM_H
#define ADDEND_PROGRAM_H
#include <stddef.h>
#include "addend/binding.h"
#include "addend/bridge.h"
#include "addend/data.h"
#include "addend/layers.h"
#include "addend/module.h"

#if defined(__cplusplus)
extern "C" {
#endif

/* ---- recipe keys: how a program's options are written ---- */

typedef enum ad_key_kind {
  AD_KEY_INTEGER,  /* int64_t */
  AD_KEY_NUMBER,   /* double; `word`, if there is one, stands for 0 */
  AD_KEY_BOOLEAN,  /* int; of a key with `words`: the number of one of them */
  AD_KEY_TEXT,     /* char *, owned */
  AD_KEY_VIEW,     /* char *, owned: a mesh string that enumerates the ranks of the first module; NULL: left out */
  AD_KEY_DTYPE,    /* ad_dtype; `word` stands for 0 */
  AD_KEY_GRADIENT, /* ad_dtype, and int at `second`: `word` stands for 0, "raw" sets the int */
  AD_KEY_SYNC,     /* ad_sync */
  AD_KEY_OVERRIDES /* ad_recipe_override *, owned, its size_t count at `second`: a map from patterns to the keys of
                      `precision` that are in an ad_contract */
} ad_key_kind;

typedef struct ad_key {
  const char *path; /* "model.layers": a section and a name, or a name alone */
  ad_key_kind kind;
  int list;                  /* a list of such values, owned; its size_t count at `second` */
  size_t offset, second;     /* into the options of the program (keys of recipes themselves: into ad_recipe) */
  double least, most;        /* of a number, or of each in a list */
  int open_least, open_most; /* 1: the limit itself is refused */
  const char *fallback;      /* as it would be written; NULL: the key must be given; "" on a list: empty */
  const char *word;
  const char *help;
  unsigned dtypes; /* of AD_KEY_DTYPE: those that it takes, AD_DTYPE_BIT of each; 0: every floating one */
  /* Of AD_KEY_BOOLEAN: what may be written, NULL after the last, where there is more between no and yes: false is read
   * as the first and true as the last. NULL: false and true alone. */
  const char *const *words;
} ad_key;
#define AD_DTYPE_BIT(dtype) (1u << (dtype))
/* The keys of most programs: a value in `field` of the struct `options`, from least to most, that must be given where
 * `fallback` is NULL. */
#define AD_INTEGER_KEY(path, options, field, least, most, fallback, help) \
  { path, AD_KEY_INTEGER, 0, offsetof(options, field), 0, least, most, 0, 0, fallback, NULL, help, 0, NULL }
#define AD_NUMBER_KEY(path, options, field, least, most, fallback, help) \
  { path, AD_KEY_NUMBER, 0, offsetof(options, field), 0, least, most, 0, 0, fallback, NULL, help, 0, NULL }
#define AD_WORDS_KEY(path, options, field, fallback, help) \
  { path, AD_KEY_TEXT, 0, offsetof(options, field), 0, 0, 0, 0, 0, fallback, NULL, help, 0, NULL }

/* Where a program says what is wrong with its options: each mistake with the key that it is best mended at:
 * "model.heads", "data.text[1]" for the second of a list, "mesh" or, where there are several modules, "mesh.MODULE". A
 * recipe adds the place where that was written. */
typedef struct ad_complaints {
  void (*add)(void *context, const char *key, ad_status status,
              const char *message); /* AD_INVALID; AD_IO: a file; AD_MEMORY */
  void *context;
} ad_complaints;
AD_API void ad_complain(const ad_complaints *to, const char *key, const char *format, ...) AD_PRINTF(3, 4);
/* The same with ad_last_error() as message, of a call that returned `status`. */
AD_API void ad_complain_of(const ad_complaints *to, const char *key, ad_status status);

/* The view of the mesh's ranks that the text of an AD_KEY_VIEW stands for: as ad_mesh_create_view, and efsdp, where the
 * text leaves it out, has the ranks that ep, etp and dp_replicate leave. "ep=2 etp=1" of 8 ranks is "efsdp=4 ep=2
 * etp=1". AD_INVALID as ad_mesh_create_view has it; destroy *out with ad_mesh_destroy. */
AD_API AD_CHECKED ad_status ad_key_view(const ad_mesh *mesh, const char *text, ad_mesh **out);

/* ---- what a program is given ---- */

typedef struct ad_program_setting {
  const ad_comm *comm;       /* this rank's; of engine dry where a program is only looked at; borrowed */
  const char *const *meshes; /* mesh strings of the modules, in the order of kind->modules; read by create only */
  int disjoint;              /* 1: each module has ranks of its own, one mesh after another; 0: all have the same */
  int64_t global_batch, microbatches;
  uint64_t seed;
  int64_t steps;     /* of the whole training */
  int64_t evaluated; /* samples that the held-out set has, or all where there are fewer; 0: there is none */
  ad_dtype compute;  /* in which tapes compute: the recipe's, or f64 in a proof; 0 where no dtype could be read */
  ad_dtype residual; /* of the residual stream, as tapes have it; 0: the wide one of `compute` */
  /* How many stages a pipeline has, where the kind has stages; 0: as many as the mesh's axis pp; stage s lies on the
   * ranks at position s % pp. And the layers of each, one after another; stage_layer_count 0: cut by the program.
   * Borrowed. */
  int64_t stages;
  const int64_t *stage_layers;
  size_t stage_layer_count;
} ad_program_setting;

/* Where the samples of a batch come from. */
typedef enum ad_held_out {
  AD_TRAINED_ON,
  AD_HELD_OUT_DRAWN, /* drawn from the part kept for validation, by seed and step */
  /* The held-out set: samples step * global_batch and on of it, the same whatever the seed. Those after its last one
   * are there, as memory is planned for them, but do not count. */
  AD_HELD_OUT_SET
} ad_held_out;

/* Forward passes outside a step: every phase of microbatch m, on the batch that was read last. Collective. */
typedef struct ad_forward {
  ad_status (*run)(void *context, size_t m);
  void *context;
  ad_group everyone; /* all ranks, which take part */
  /* To be called now and then by the first rank in what takes long: `done` of `of` are done. */
  void (*tell)(void *context, const char *what, int64_t done, int64_t of);
} ad_forward;

/* ---- the record of a kind ---- */

typedef struct ad_program ad_program;
typedef struct ad_phase_run ad_phase_run; /* one phase of one microbatch, under way */

/* A phase of a microbatch: a tape on the mesh of one module, which runs on that module's ranks. Backward goes through
 * the phases in reverse: each starts from its losses and from the gradients of what it gave (ad_backward_from), and
 * leaves the gradients of what it needed. */
typedef struct ad_phase {
  size_t size;              /* sizeof(ad_phase) */
  const char *name;         /* for messages and traces */
  size_t module;            /* its number in the program */
  const char *const *needs; /* names of values that earlier phases give, NULL at the end; NULL: none */
  const char *const *gives; /* names of values for later phases */
  ad_status (*run)(void *own, ad_phase_run *at); /* records the forward pass */
  /* When the phase has gone back: gradients of inputs and of kept values are there, times the loss's coefficient and
   * scale. NULL: nothing is done with them. */
  ad_status (*after)(void *own, ad_phase_run *at);
} ad_phase;

/* A number of addends that losses are divided by, summed over the step's microbatches and over the axes on which
 * `layout` is P (law 5). */
typedef struct ad_count_spec {
  size_t size; /* sizeof(ad_count_spec) */
  const char *name;
  ad_layout layout; /* P where ranks count different things, R or I elsewhere */
} ad_count_spec;

typedef struct ad_loss_spec {
  size_t size; /* sizeof(ad_loss_spec) */
  const char *name;
  size_t count;       /* the number of the count that divides it */
  int is_metric;      /* 1: reported in the same way, but no gradient starts from it */
  double coefficient; /* with which it enters the loss that is trained on; it is reported without. 0: 1 */
  int is_auxiliary;   /* 1: no part of a held-out loss, which says how good the model is (a balancing loss) */
  int per_microbatch; /* 1: not linear in its sums, so it is defined for each microbatch over all ranks, and enters with
                       * its microbatch's share of the count instead of being divided by it */
  double uniform;     /* what it is where everything has one probability, which a report sets it beside; 0: not told */
} ad_loss_spec;

/* A value that goes from the module of the phase that gives it to another one's phases. They get what the bridge brings
 * (its `to`), and each leaves a gradient; these are added up and go back over it. Where the modules have ranks of their
 * own it travels while both sides work. */
typedef struct ad_crossing_spec {
  size_t size; /* sizeof(ad_crossing_spec) */
  const char *value;
  size_t module;     /* whose phases need it */
  ad_bridge *bridge; /* borrowed */
  ad_shape shape; /* of the whole; where the bridge cuts dimension 0 that is the step's batch, and microbatches cut it
                   * as they cut samples */
  /* In which it travels between ranks, and its gradient back; 0: as it is. A proof in f64 rounds nothing. */
  ad_dtype wire, gradient_wire;
  int one_way;      /* 1: no gradient comes back: no loss that is trained on depends on it there */
  int is_parameter; /* 1: it is a parameter's value, and so its gradient f32 also where values are bf16; microbatches
                     * do not cut it */
  int is_residual;  /* 1: it is the residual stream, in its dtype */
} ad_crossing_spec;

typedef struct ad_program_kind ad_program_kind;

/* A training that comes before a program's own and makes what that starts from: a run of another kind, in a folder of
 * its own inside the run's. Keys of the two kinds that have one name have one value; its `train` is the program's
 * section `name`. See ad_recipe_pretraining. */
typedef struct ad_pretraining {
  const char *name; /* of section and folder: "target" */
  const ad_program_kind *(*kind)(void);
  /* In the program's options: an int64_t, the key `name`.steps, 0: there is no such training; and a const char *, no
   * key: the file of the weights that it gave, borrowed, NULL: it was not run. */
  size_t steps, weights;
} ad_pretraining;

typedef enum ad_deciding { AD_DECIDES, AD_OBEYS } ad_deciding;
typedef enum ad_step_outcome { AD_STEP_TAKEN, AD_STEP_SKIPPED } ad_step_outcome;

/* A program needs a name, keys, `create` and `read`. All else may be 0 or NULL. */
struct ad_program_kind {
  size_t size;      /* sizeof(ad_program_kind) */
  const char *name; /* of model.kind */
  const char *help; /* one line for people */
  /* Names, NULL at the end. One: a recipe's mesh is a text; several: a map with these keys. Where a mesh has the axis
   * `block` each block is a module of that name, on a mesh of the other axes: `create` adds them one after another.
   * NULL: one, "model". */
  const char *const *modules;
  const ad_key *keys;
  size_t key_count;
  size_t options_size; /* of the struct that the keys fill */
  /* Adds modules, counts, losses and phases to `to` by the functions below; *own is handed to the others. Reads no
   * file. */
  ad_status (*create)(const void *options, ad_program *to, void **own);
  void (*destroy)(void *own); /* also after a create that failed, if it had set *own. NULL: *own is freed with free() */
  ad_status (*open)(void *own); /* reads its data; before the first `read`. NULL: there is nothing to be opened */
  /* Reads this rank's share of a step's batch, all microbatches; held_out: AD_TRAINED_ON or one of the other two. The
   * batch follows from the step's number: a proof reads steps again, and its sabotage hands one rank that of another.
   * counted[c][m]: what count number c has on this rank in microbatch m. */
  ad_status (*read)(void *own, int64_t step, ad_held_out held_out, int64_t *const *counted);

  /* What options say together, beyond the range of each, which its key has. */
  struct {
    /* Fills options that follow from others, after a recipe was read; a key that could not be read has left 0 or an
     * empty value. NULL: none. */
    void (*complete)(void *options);
    /* What several keys say together, and with the meshes (one for each module). The only place where options are
     * judged, but for the range of each value. A value may lie out of its range, or be 0 or empty where it could not be
     * read, and a mesh that could not be read is one of a single rank: that was told already, and nothing follows from
     * it. setting->meshes is NULL. NULL: each key says all. */
    void (*check)(const void *options, const ad_program_setting *setting, const ad_mesh *const *meshes,
                  const ad_complaints *to);
    /* Whether the files that the options name are there and long enough. NULL: it has none. */
    void (*check_files)(const void *options, const ad_complaints *to);
    /* Where the loss is no function whose slope the gradients are, so that a difference quotient says nothing of them:
     * what is to be set that it is one; else NULL. NULL: it always is. */
    const char *(*not_smooth)(const void *options);
  } rules;

  /* What it reads. */
  struct {
    int (*has_held_out)(const void *own); /* also before open; NULL: 0 */
    /* How many samples the part kept for validation has, after open. NULL: any number can be drawn. */
    int64_t (*held_out_samples)(const void *own);
    size_t (*bytes)(const void *own); /* memory of data and batch on this rank; NULL: that of ad_program_add_batch */
    /* The arrays of a step's batch: all that makes one rank's share of it, and so the memory of its tapes, another size
     * than the next one's. Number `index` with its name ("microbatch.0.tokens"; size 0: not wanted); NULL after the
     * last. Modules that read one batch in slices of their own each have arrays of it, of one name. Without data before
     * the first `read`. NULL: those of ad_program_add_batch. */
    const ad_array *(*batch_array)(const void *own, size_t index, char *name, size_t size);
    /* Arrays that are computed with and that no step changes (weights of a decoder that is explained): number `index`
     * with its name, as above. Without data before `open`. NULL: there are none. */
    const ad_array *(*constant_array)(const void *own, size_t index, char *name, size_t size);
    /* What files hold that keys name: the key number `index` ("data.text") with its contents in a few words ("N bytes,
     * xxh64 ..."), after open; NULL after the last. Checkpoints know a file by these and not by its name. NULL: none.
     */
    const char *(*content)(const void *own, size_t index, char *buffer, size_t size);
  } data;

  /* Where it chooses by numbers (experts by scores). */
  struct {
    /* The smallest distance in the present step between what was chosen and the best that was not; INFINITY: nothing
     * was left. Below what rounding changes, another topology may choose otherwise. NULL: it chooses nothing. */
    double (*margin)(const void *own);
    /* These choices themselves, in an order that no mesh changes; below 0: another rank chose. From the first call on a
     * step leaves its own there (AD_DECIDES), or takes what stands there instead (AD_OBEYS). NULL with `margin`. */
    ad_status (*decisions)(void *own, ad_deciding deciding, int32_t **out, size_t *count);
  } choices;

  /* What a run tells of it. */
  struct {
    double (*flops)(const void *own, int64_t samples); /* of matrix products, forward and backward, of so many samples;
                                                        * NULL: not known */
    /* Numbers of the step that was taken last, the same on all ranks, for metrics.jsonl: number `index` of them, with
     * its name and how many it has; NULL after the last. NULL: there are none. */
    const double *(*measured)(const void *own, size_t index, const char **name, size_t *count);
    /* After the training, on all ranks: what was learned, on data that is held out, as a JSON document for the run's
     * folder and its report. On the first rank *out is a text that is freed with free(), or NULL: nothing is to be
     * shown. Collective. NULL: it shows nothing. */
    ad_status (*show)(void *own, const ad_forward *forward, char **out);
    /* Pairs of a name and a text for a report's summary, of which the NULL name ends the list. NULL: none. */
    const char *(*fact)(const void *own, size_t index, char *buffer, size_t size);
  } account;

  /* What it does beside its steps. */
  struct {
    /* After a step's updates, on all ranks: what changes once a step (states, by the step's numbers). AD_STEP_SKIPPED:
     * nothing was updated. Collective. NULL: nothing does. */
    ad_status (*after_step)(void *own, ad_step_outcome outcome);
    const ad_pretraining *pretraining; /* NULL: none */
    /* Why a run cannot go on from a checkpoint with another value of this key, in half a sentence ("states are kept for
     * each microbatch"), where it is one that may else change (train.microbatches); NULL: it can. NULL: it always can.
     */
    const char *(*fixed)(const void *own, const char *key);
  } course;

  /* 1: it has one module, which a pipeline cuts into stages: `create` adds one of each stage, all of that name, each on
   * the mesh of its stage (ad_program_stage_count, ad_program_mesh); parameters have the names that they have in one
   * module. `rules.check` is given the mesh of the first stage. 0: its mesh has no axis pp. */
  int has_stages;
  /* As account.flops, of one stage: how a plan weighs them. NULL: all are alike. */
  double (*stage_flops)(const void *own, size_t stage, int64_t samples);
};

/* Adds a kind of one's own, before recipes of it are read. It is borrowed. AD_INVALID if the name is taken. */
AD_API AD_CHECKED ad_status ad_program_register(const ad_program_kind *kind);

/* ---- a program in a file of its own ---- */

/* What a shared object says of itself. */
typedef struct ad_program_object {
  size_t size;                                       /* sizeof(ad_program_object) */
  const char *version;                               /* AD_HEADER_VERSION */
  const ad_program_kind *const *kinds;               /* NULL at the end */
  ad_status (*library)(const ad_program_kind *kind); /* ad_program_register, as the object found it */
} ad_program_object;

/* Stands once in the C file of a shared object that `addend --program FILE` or ad_program_load is to take:
 *
 *   static const ad_program_kind *const kinds[] = {&classifier, NULL};
 *   AD_PROGRAM_OBJECT(kinds);
 *
 * and costs nothing where the same file is built as a program. */
#define AD_PROGRAM_OBJECT(kinds)                                                                                   \
  AD_EXTERN_C AD_API const ad_program_object addend_program;                                                       \
  AD_EXTERN_C_VALUE const ad_program_object addend_program = {sizeof(ad_program_object), AD_HEADER_VERSION, kinds, \
                                                              ad_program_register}
#if defined(__cplusplus)
#define AD_EXTERN_C extern "C"
#define AD_EXTERN_C_VALUE
#else
#define AD_EXTERN_C extern
#define AD_EXTERN_C_VALUE
#endif

/* Loads a shared object and registers its kinds; it stays loaded. It is code that runs in this process: never take its
 * name from a file that others wrote. AD_INVALID, with a sentence: there is no such file, it is no shared object, it
 * brings no programs, it was built with the headers of another version, or linked with a library of its own. */
AD_API AD_CHECKED ad_status ad_program_load(const char *path);

/* ---- a program ---- */

AD_API const ad_program_setting *ad_program_setting_of(const ad_program *program);
/* Whether files of weights are those of parameters, for a program that starts from such a file. AD_INVALID, with their
 * path, unless they have every parameter as a tensor of its shape, of floats, and no other tensor: names those that are
 * missing, that differ and that are left over. Looks at no value. */
AD_API AD_CHECKED ad_status ad_params_check_weights(const ad_param_spec *params, size_t count,
                                                    const ad_weights *weights);

/* In create. Each copies what it is given, but for the names of counts, losses, phases and values, which are borrowed.
 */
AD_API AD_CHECKED ad_status ad_program_add_module(ad_program *to, const ad_module_spec *spec);
/* The same with what was declared (layers.h), on the mesh of the list; `norm_group` may be NULL. Releases the list,
 * also where a declaration failed, whose status it returns. */
AD_API AD_CHECKED ad_status ad_program_add_declared(ad_program *to, const char *name, const char *norm_group,
                                                    ad_declarations *list);
AD_API AD_CHECKED ad_status ad_program_add_count(ad_program *to, const ad_count_spec *spec);
AD_API AD_CHECKED ad_status ad_program_add_loss(ad_program *to, const ad_loss_spec *spec);
/* After the phase that gives the value and before those that need it. */
AD_API AD_CHECKED ad_status ad_program_add_crossing(ad_program *to, const ad_crossing_spec *spec);
AD_API AD_CHECKED ad_status ad_program_add_phase(ad_program *to, const ad_phase *phase);

AD_API const ad_mesh *ad_program_mesh(const ad_program *program, size_t module);
/* The mesh of the kind's module number `pool`, with all its blocks or stages: for counts that they have in common. */
AD_API const ad_mesh *ad_program_pool(const ad_program *program, size_t pool);
/* How many stages its module is cut into, each a module of its own; 1 where its kind has none. */
AD_API size_t ad_program_stage_count(const ad_program *program);

/* ---- batches that are read row by row ---- */

typedef struct ad_batch ad_batch; /* belongs to its program */

typedef struct ad_batch_field {
  const char *name; /* borrowed */
  ad_dtype dtype;
  ad_shape row; /* of one sample; 0 dimensions: a number */
} ad_batch_field;
/* In create: for every microbatch an array [samples, row...] of each field, cut as `rows` says, with memory that is
 * zero at first. A program has one batch at most. Where its kind says nothing else they are its data: their bytes, and
 * the arrays that a dump has ("microbatch.0.x"). The fields are borrowed. */
AD_API AD_CHECKED ad_status ad_program_add_batch(ad_program *to, const ad_layout *rows, const ad_batch_field *fields,
                                                 size_t count, ad_batch **out);
AD_API const ad_array *ad_batch_array(const ad_batch *batch, size_t field, size_t m); /* of microbatch m; borrowed */

/* One sample of this rank's. */
typedef struct ad_batch_row {
  size_t size;            /* sizeof(ad_batch_row) */
  const ad_array *fields; /* of its microbatch, in the order in which they were given */
  size_t row;             /* where it stands in them, counted in rows */
  int64_t sample; /* its number: step * global_batch + its place in the step's batch; of the held-out set, in it */
  ad_held_out held_out;
  int counts; /* 1, or 0 after the last sample of the held-out set; set it to 0 for one that is not to count */
} ad_batch_row;
typedef struct ad_row_reader {
  ad_status (*read)(void *own, ad_batch_row *row);
  void *own;
} ad_row_reader;
/* In the kind's `read`: hands every sample of this rank's to the reader, and counts those that count in each microbatch
 * (`counted[0]` of `read`, where the count is one of samples). On engine dry nothing is read, and all count. */
AD_API AD_CHECKED ad_status ad_batch_read(ad_batch *batch, int64_t step, ad_held_out held_out,
                                          const ad_row_reader *reader, int64_t *counted);
/* The batch that was read last: its step, whether it is trained on, and the number that the first sample of microbatch
 * m has in a step's batch, over all ranks. What a phase draws by sample it draws by these (ad_dropout), and
 * leaves out for held-out batches: a proof's forward passes then draw as its steps do. */
AD_API int64_t ad_batch_step(const ad_batch *batch);
AD_API ad_held_out ad_batch_held_out(const ad_batch *batch);
AD_API int64_t ad_batch_first(const ad_batch *batch, size_t m);

/* ---- in a phase ---- */

AD_API ad_tape *ad_phase_tape(ad_phase_run *at);
AD_API size_t ad_phase_microbatch(const ad_phase_run *at);
AD_API size_t ad_phase_module(const ad_phase_run *at); /* its number in the program */
AD_API int ad_phase_trains(const ad_phase_run *at); /* 1: in a step; 0: a forward pass alone, which changes nothing */
/* What every gradient of a step is multiplied by, a power of two (precision.loss_scale); 1: by nothing. Who reads one
 * after the backward pass divides by it. */
AD_API double ad_phase_loss_scale(const ad_phase_run *at);
/* Of the phase's module. A parameter is used in one phase of a microbatch: its gradient is handed in once. */
AD_API const ad_parameters *ad_phase_parameters(ad_phase_run *at);
/* State number `state` of the phase's module: as a constant of the tape, or to be written where the program says so. */
AD_API ad_array *ad_phase_state(ad_phase_run *at, size_t state);
/* One state of the phase's module that a gradient changes within a step, by a rule of the program's own. */
typedef struct ad_state_change {
  size_t state;             /* its number */
  const ad_array *gradient; /* as this rank has it, with as many elements as its part of the state */
} ad_state_change;
/* A rule by which states change within a step; `i` is a change's number in the list. */
typedef struct ad_state_rule {
  size_t size; /* sizeof(ad_state_rule) */
  /* Changes the state. */
  void (*change)(const void *own, ad_phase_run *at, const ad_state_change *change, size_t i);
  /* After the change: adds to off[numel] what each element of the state may be off by, where its gradients, this one
   * and all earlier ones, may be off by `error`. A proof allows that much: a rule that divides by what it has seen
   * makes rounding large. NULL: nothing. */
  void (*off)(const void *own, ad_phase_run *at, const ad_state_change *change, size_t i, double error, double *off);
  const void *own;
} ad_state_rule;
/* Changes the states one after another. Nothing is reduced: a state that several ranks have as one needs the whole
 * gradient on each. Known mistakes are planted here, and proofs learn here what may be off. AD_INVALID where a gradient
 * is NULL or has another number of elements than its state; states before it are changed then. */
AD_API AD_CHECKED ad_status ad_phase_change_states(ad_phase_run *at, const ad_state_rule *rule,
                                                   const ad_state_change *changes, size_t count);
/* The value that an earlier phase gave by this name, on this phase's tape: as a leaf, or as its crossing brought it. It
 * carries a gradient, unless it was made of constants alone, as far as this rank can see that. */
AD_API ad_tensor *ad_phase_need(ad_phase_run *at, const char *name);
AD_API void ad_phase_give(ad_phase_run *at, const char *name, ad_tensor *value);
/* The numerator of loss number `loss` in this microbatch, or this phase's part of it; once a phase. The step divides
 * it, starts backward from it, times its coefficient, and reports it. */
AD_API void ad_phase_loss(ad_phase_run *at, size_t loss, ad_tensor *numerator);

#if defined(__cplusplus)
}
#endif
#endif
