/* Programs. A program is what is trained: its record (ad_program_kind) has its recipe keys, its modules, its data, the
 * phases of a microbatch, its counts and its losses. The step function (train.h) applies the laws and knows no model; a
 * program knows its model.
 *
 * For authors of programs. A record's functions run on the thread that uses the run. Register and load kinds on one
 * thread, before recipes are read. */
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

/* ---- recipe keys: how recipes write a program's options ---- */

typedef enum ad_key_kind {
  AD_KEY_INTEGER, /* int64_t */
  AD_KEY_NUMBER,  /* double; if the key has a `word`, this word means 0 */
  AD_KEY_BOOLEAN, /* int; for a key with `words`: the index of the word that was written */
  AD_KEY_TEXT,    /* char *, owned */
  /* char *, owned: a mesh string for the ranks of the first module; NULL if the recipe leaves the key out. With
   * train.leaves `create` gets a string for the ranks of one data-parallel position. */
  AD_KEY_VIEW,
  AD_KEY_DTYPE,    /* ad_dtype; the key's `word` means 0 */
  AD_KEY_GRADIENT, /* ad_dtype, and an int at `second`; the key's `word` means dtype 0, "raw" sets the int to 1 */
  AD_KEY_SYNC,     /* ad_sync */
  /* ad_recipe_override *, owned, with its size_t count at `second`: a map from patterns of parameter names to the keys
   * of `precision` that ad_precision_policy has */
  AD_KEY_OVERRIDES,
  /* ad_recipe_group *, owned, with its size_t count at `second`: a list of maps with a pattern of parameter names and
   * how parameters with such names are updated */
  AD_KEY_GROUPS,
  AD_KEY_COUNT, /* int: a whole number */
  /* ad_recipe_shard_group *, owned, with its size_t count at `second`: a list of maps with a pattern of parameter names
   * and how parameters with such names are sharded */
  AD_KEY_SHARD_GROUPS
} ad_key_kind;

typedef struct ad_key {
  const char *path; /* path of the key: "model.layers" (section and name), or a name without a section */
  ad_key_kind kind;
  int list; /* 1: the value is a list of values of this kind, owned; its size_t count is at `second` */
  /* byte offsets in the program's options struct (in ad_recipe for keys that all recipes have): of the value, and of
   * the second value that some kinds have */
  size_t offset, second;
  double least, most;        /* smallest and largest value of a number, or of each number of a list */
  int open_least, open_most; /* 1: `least`, or `most`, itself is not allowed */
  /* the default, as a recipe would write it; "" for a list: the empty list; NULL: the recipe must give the key */
  const char *fallback;
  /* a word that a recipe may write for 0, see ad_key_kind; NULL: none */
  const char *word;
  /* a line for people, shown by --help */
  const char *help;
  unsigned dtypes; /* for AD_KEY_DTYPE: the dtypes that it accepts, AD_DTYPE_BIT of each; 0: every floating dtype */
  /* For AD_KEY_BOOLEAN with more than two choices: the words that may be written, NULL after the last. "false" is read
   * as the first word and "true" as the last. NULL: only false and true. */
  const char *const *words;
} ad_key;
#define AD_DTYPE_BIT(dtype) (1u << (dtype))
/* Short forms for most keys. The value is in `field` of the struct `options`, between least and most. The recipe must
 * give the key if `fallback` is NULL. */
#define AD_INTEGER_KEY(path, options, field, least, most, fallback, help) \
  { path, AD_KEY_INTEGER, 0, offsetof(options, field), 0, least, most, 0, 0, fallback, NULL, help, 0, NULL }
#define AD_NUMBER_KEY(path, options, field, least, most, fallback, help) \
  { path, AD_KEY_NUMBER, 0, offsetof(options, field), 0, least, most, 0, 0, fallback, NULL, help, 0, NULL }
#define AD_WORDS_KEY(path, options, field, fallback, help) \
  { path, AD_KEY_TEXT, 0, offsetof(options, field), 0, 0, 0, 0, 0, fallback, NULL, help, 0, NULL }

/* Receives a program's complaints about its options. Each complaint names the key that is best changed: "model.heads";
 * "data.text[1]" for the second element of a list; "mesh" or, with several modules, "mesh.MODULE". The recipe adds that
 * key's file and line. */
typedef struct ad_complaints {
  /* status: AD_INVALID, AD_IO (a file) or AD_MEMORY */
  void (*add)(void *context, const char *key, ad_status status, const char *message);
  void *context;
} ad_complaints;
/* Adds a complaint about a key; the message is formatted as by printf. */
AD_API void ad_complain(const ad_complaints *to, const char *key, const char *format, ...) AD_PRINTF(3, 4);
/* Adds a complaint about a key with ad_last_error() as its message, after a call that returned `status`. */
AD_API void ad_complain_of(const ad_complaints *to, const char *key, ad_status status);

/* Creates the view of the mesh's ranks that the text of an AD_KEY_VIEW describes. Like ad_mesh_create_view, but if the
 * text leaves out efsdp, efsdp has the ranks that ep, etp and dp_replicate leave: "ep=2 etp=1" of 8 ranks is "efsdp=4
 * ep=2 etp=1". AD_INVALID as ad_mesh_create_view; destroy *out with ad_mesh_destroy. */
AD_API AD_CHECKED ad_status ad_key_view(const ad_mesh *mesh, const char *text, ad_mesh **out);

/* ---- settings and forward passes: what a program is given ---- */

typedef struct ad_program_setting {
  const ad_comm *comm;       /* this rank's comm, on backend dry if the program is only planned or checked; borrowed */
  const char *const *meshes; /* mesh strings of the modules, in the order of kind->modules; only create may read them */
  int disjoint; /* 1: each module has its own ranks, one mesh after another; 0: all modules share the same ranks */
  int64_t global_batch, microbatches;
  uint64_t seed;
  int64_t steps; /* number of steps of the whole training */
  /* number of samples in the validation set, or all validation samples if there are fewer; 0: there is no such set */
  int64_t evaluated;
  /* dtype in which tapes compute: the recipe's, or f64 in a check; 0 if the recipe's could not be read */
  ad_dtype compute;
  ad_dtype residual; /* dtype of the residual stream, as in ad_tape_options; 0: the wide dtype of `compute` */
  /* Number of pipeline stages, if the kind has stages; 0: as many as the mesh's axis pp has ranks. Stage s is on the
   * ranks at position s % pp of that axis. stage_layers has each stage's number of layers; stage_layer_count 0: the
   * program divides the layers. Borrowed. */
  int64_t stages;
  const int64_t *stage_layers;
  size_t stage_layer_count;
  /* train.leaves: the number of leaves of the global batch; 0: there are none. With leaves `microbatches` is the same
   * number: to the program each leaf is a microbatch of a run without data parallelism. Its mesh has the ranks of one
   * data-parallel position, and dp_replicate and dp_shard have size 1 there. */
  int64_t leaves;
  /* The microbatches that this rank runs, in ascending order: all of them or, with leaves, those of its data-parallel
   * position, of which there may be none. The other microbatches have no data here, and their counts are not read. With
   * shard.zero 3 all ranks gather parameters together. So while other ranks run leaves, a rank that has none left runs
   * its first leaf again (leaf 0 if it has none at all), and the results are discarded. Owned by the program; NULL
   * before `create`, as for rules.check. */
  const int64_t *own;
  size_t own_count;
} ad_program_setting;

/* Where a batch's samples come from. */
typedef enum ad_data_split {
  AD_TRAINED_ON,
  AD_VALIDATION_DRAWN, /* drawn from the validation part, by seed and step */
  /* The validation set: its samples from step * global_batch on, the same for every seed. Samples after its last one
   * are read too, because memory is planned for them, but do not count. */
  AD_VALIDATION_SET
} ad_data_split;

/* Runs forward passes outside a step: every phase of microbatch m, on the batch that was read last. Collective. */
typedef struct ad_forward {
  ad_status (*run)(void *context, size_t m);
  void *context;
  ad_group everyone; /* all ranks; all of them must call `run` */
  /* Reports progress. The first rank calls it now and then during long work with `of` parts, of which `done` are
   * done. */
  void (*report_progress)(void *context, const char *what, int64_t done, int64_t of);
} ad_forward;

/* ---- the record of a kind of program, and the structures that it refers to ---- */

typedef struct ad_program ad_program;
typedef struct ad_phase_run ad_phase_run; /* one phase of one microbatch, while it runs */

/* A phase of a microbatch: it records a tape on the mesh of one module and runs on that module's ranks. Backward
 * runs the phases in reverse. Each phase starts backward from its losses and from the gradients of the values that
 * it gave (ad_backward_from), and produces the gradients of the values that it needed. */
typedef struct ad_phase {
  size_t size;              /* sizeof(ad_phase) */
  const char *name;         /* name of the phase, for messages and traces */
  size_t module;            /* index of the phase's module in the program */
  const char *const *needs; /* names of values that earlier phases give, NULL at the end; NULL: none */
  const char *const *gives; /* names of values that this phase gives to later phases; NULL at the end; NULL: none */
  ad_status (*run)(void *own, ad_phase_run *at); /* records the phase's forward pass on the tape */
  /* Called after the phase's backward: gradients of inputs and of kept values are complete then, multiplied by the
   * loss's coefficient and by the loss scale. NULL: there is nothing to do. */
  ad_status (*after)(void *own, ad_phase_run *at);
} ad_phase;

/* A count: the number by which losses are divided. It is summed over the step's microbatches, and over the axes on
 * which `layout` is P (law 5). */
typedef struct ad_count_spec {
  size_t size; /* sizeof(ad_count_spec) */
  const char *name;
  ad_layout layout; /* P on axes along which ranks count different things, R or I on all other axes */
} ad_count_spec;

/* A loss: its numerator comes from phases (ad_phase_loss), its denominator is a count. */
typedef struct ad_loss_spec {
  size_t size; /* sizeof(ad_loss_spec) */
  const char *name;
  size_t count;  /* index of the count that divides the loss */
  int is_metric; /* 1: reported like a loss, but without a gradient: backward does not start from it */
  /* factor of this loss in the loss that is trained on; reports show the loss without it; 0 means 1 */
  double coefficient;
  /* 1: not part of the validation loss, which shows how good the model is (example: a balancing loss) */
  int is_auxiliary;
  /* 1: the loss is not linear in its sums. The loss is then computed for each microbatch over all ranks and weighted
   * with the microbatch's share of the count, instead of being divided by the count. */
  int per_microbatch;
  /* value of the loss if all outcomes are equally probable, which a report shows for comparison; 0: not known */
  double uniform;
} ad_loss_spec;

/* A transfer: a value goes over a bridge from the module of its giving phase to the phases of another module. These
 * phases get the value as the bridge brings it (with the layout `to`), and each leaves a gradient; the sum of these
 * gradients goes back over the bridge. If the two modules have separate ranks, values travel while both sides work. */
typedef struct ad_transfer_spec {
  size_t size; /* sizeof(ad_transfer_spec) */
  /* name of the value */
  const char *value;
  size_t module;     /* index of the module whose phases need the value */
  ad_bridge *bridge; /* borrowed */
  /* Shape of the full value. If the bridge shards dimension 0, that dimension is the step's batch, and microbatches
   * divide it as they divide samples. */
  ad_shape shape;
  /* Dtypes in which the value and its gradient travel between ranks; 0: unchanged. A check in f64 ignores them and
   * rounds nothing. */
  ad_dtype comm_dtype, gradient_comm_dtype;
  /* 1: no gradient goes back over the bridge, because no loss that is trained on depends on what `module` computes from
   * the value */
  int one_way;
  /* 1: the value is a parameter's value. Its gradient is f32 even if values are bf16, and microbatches do not divide
   * the value. */
  int is_parameter;
  int is_residual; /* 1: the value is the residual stream, and has the residual stream's dtype */
} ad_transfer_spec;

typedef struct ad_program_kind ad_program_kind;

/* A training that runs before a program's own and makes the values from which the program starts. It is a run of
 * another kind, in its own folder inside the run's folder. Keys that both kinds have share one value; the earlier
 * run's `train` section is the program's section `name`. See ad_recipe_pretraining. */
typedef struct ad_pretraining {
  const char *name; /* name of the section and of the folder: "target" */
  const ad_program_kind *(*kind)(void);
  /* Offsets in the program's options. At `steps`: an int64_t, the key `name`.steps; 0: there is no training before this
   * one. At `weights`: a const char *, not a key, the file of the weights that the training produced; borrowed; NULL:
   * the training was not run. */
  size_t steps, weights;
} ad_pretraining;

typedef enum ad_deciding { AD_DECIDES, AD_OBEYS } ad_deciding;
typedef enum ad_step_outcome { AD_STEP_TAKEN, AD_STEP_SKIPPED } ad_step_outcome;

/* The text that a program continues: the argument of ad_program_kind.sampling.next. */
typedef struct ad_continued {
  size_t size;               /* sizeof(ad_continued) */
  ad_tensor *const *params;  /* the module's parameters, as constants of the tape */
  ad_array *const *states;   /* the module's states */
  ad_tensor *tokens;         /* the tokens to read, i32 [1, count] */
  ad_kept_keys *const *kept; /* keys and values of the tokens read before */
} ad_continued;

/* The record of a kind of program. It needs a name, keys, `create` and `read`; all other members may be 0 or NULL. */
struct ad_program_kind {
  size_t size;      /* sizeof(ad_program_kind) */
  const char *name; /* the value of model.kind in recipes */
  const char *help; /* one line about the program, for people */
  /* Names of the modules, NULL at the end. With one name, the key `mesh` of a recipe is a text; with several, `mesh` is
   * a map with these names as keys. If a mesh has the axis `block`, each block is a module of that name on a mesh of
   * the other axes, and `create` adds one after another. NULL: one module, "model". */
  const char *const *modules;
  const ad_key *keys;
  size_t key_count;
  size_t options_size; /* size of the struct that the keys fill */
  /* Adds modules, counts, losses and phases to `to` with the functions below. *own is passed to all other callbacks.
   * Reads no file. */
  ad_status (*create)(const void *options, ad_program *to, void **own);
  /* Frees own; also called after a failed create that had set *own. NULL: own is freed with free(). */
  void (*destroy)(void *own);
  ad_status (*open)(void *own); /* Opens the program's data, before the first `read`. NULL: there is nothing to open. */
  /* Reads this rank's share of a step's batch, for all microbatches that the rank runs (setting->own). The batch must
   * depend only on the step's number (and on `validation`): a check reads steps again, and its mutants give one rank
   * the batch of another step. counted[c][m] receives the count c of this rank in microbatch m. */
  ad_status (*read)(void *own, int64_t step, ad_data_split validation, int64_t *const *counted);

  /* Rules for options in combination; the range of each single option is in its key. */
  struct {
    /* Fills options that follow from others, after a recipe was read. Options whose keys could not be read are 0 or
     * empty. NULL: there are no such options. */
    void (*complete)(void *options);
    /* Judges several keys together, and together with the meshes (one for each module); the range of each single value
     * is checked already. Values out of range, values that could not be read (they are 0 or empty) and meshes that
     * could not be read (they have a single rank) were reported before: report nothing that follows from them.
     * setting->meshes is NULL. NULL: the ranges of the keys are enough. */
    void (*check)(const void *options, const ad_program_setting *setting, const ad_mesh *const *meshes,
                  const ad_complaints *to);
    /* Complains if files that the options name do not exist or are too short. NULL: the options name no files. */
    void (*check_files)(const void *options, const ad_complaints *to);
    /* Returns NULL if gradients are the slope of the loss under these options, so that difference quotients can check
     * them. Otherwise returns which setting would make them the slope, or why none does. NULL: gradients always are the
     * slope. */
    const char *(*not_smooth)(const void *options);
    /* For a key in which 0 means "the usual number" ("model.d_hidden"): returns this number, which an export writes
     * into config.json. NULL: 0 means 0 in every key. */
    int64_t (*usual)(const void *options, const char *key);
  } rules;

  /* The data that the program reads. */
  struct {
    /* returns 1 if there is validation data; may be called before open; NULL: there is none */
    int (*has_validation)(const void *own);
    /* Returns the number of samples in the validation part, after open. NULL: any number can be drawn. */
    int64_t (*validation_samples)(const void *own);
    /* Returns the bytes of memory for data and batch on this rank. NULL: those of ad_program_add_batch. */
    size_t (*bytes)(const void *own);
    /* The arrays of a step's batch. Arrays whose sizes differ between ranks must all be here, since the memory of tapes
     * depends on them. Returns array `index` and its name ("microbatch.0.tokens"; size 0: the name is not wanted); NULL
     * after the last. Modules that each read a slice of one batch each have arrays of it, with the same name. Arrays
     * have no data before the first `read`. NULL: those of ad_program_add_batch. */
    const ad_array *(*batch_array)(const void *own, size_t index, char *name, size_t size);
    /* Arrays that computation uses and that no step changes (weights of a decoder that is explained): returns array
     * `index` and its name, as batch_array does. They have no data before `open`. NULL: there are none. */
    const ad_array *(*constant_array)(const void *own, size_t index, char *name, size_t size);
    /* The contents of files that keys name: returns the key `index` ("data.text") and describes its file's contents in
     * a few words ("N bytes, xxh64 ..."), after open; NULL after the last. Checkpoints identify a file by this text,
     * not by its name. NULL: there are none. */
    const char *(*content)(const void *own, size_t index, char *buffer, size_t size);
    /* Files that belong to the data, such as a tokenizer; a run's folder gets copies of them under their own names.
     * Returns path number `index`, after open, valid as long as the program; NULL after the last. NULL: there are none.
     */
    const char *(*companion)(const void *own, size_t index);
  } data;

  /* Programs that choose by comparing numbers (experts by scores). */
  struct {
    /* The smallest distance in the present step between a chosen number and the best number that was not chosen;
     * INFINITY: every number was chosen. If the distance is below what rounding changes, another mesh may choose
     * differently. NULL: the program chooses nothing. */
    double (*margin)(const void *own);
    /* The choices themselves, in an order that no mesh changes; a value below 0 means that another rank chose. After
     * the first call a step stores its own choices there (AD_DECIDES), or uses the choices stored there (AD_OBEYS).
     * NULL if `margin` is NULL. */
    ad_status (*decisions)(void *own, ad_deciding deciding, int32_t **out, size_t *count);
  } choices;

  /* How a text is continued (sample.h, and the prompts of evaluations), in one process. A program that can do this has
   * one module. `next` NULL: the program cannot continue texts. */
  struct {
    /* Returns the options of the text that training reads, and sets *vocabulary to the number of different tokens. */
    const ad_text_options *(*text)(const void *options, int64_t *vocabulary);
    /* Changes options with which the result for a token depends on how many tokens are read together, since sampling
     * reads tokens one by one. NULL: there are no such options. */
    void (*prepare)(void *options);
    size_t (*kept_count)(const void *own); /* returns how many caches of keys and values `next` fills */
    /* Returns the logits [1, 1, vocabulary] of the token that follows. */
    ad_tensor *(*next)(void *own, ad_tape *t, const ad_continued *from);
  } sampling;
  /* Names of architectures of Hugging Face Transformers that the program computes ("LlamaForCausalLM"), NULL at the
   * end. `model.from` reads a model of one of these architectures as a recipe of this kind, and an export writes such a
   * model. The program's keys and parameters must have the same names as those of the kinds gpt and moe
   * (train/docs/models.md). NULL: there are none. */
  const char *const *architectures;

  /* What a run reports about the program. */
  struct {
    /* Returns the floating-point operations of all matrix products, forward and backward, for this number of samples.
     * NULL: not known. */
    double (*flops)(const void *own, int64_t samples);
    /* Gives the numbers of the last step, the same on all ranks, for metrics.jsonl. A call returns series `index`, its
     * name and its length; NULL after the last. NULL: there are none. */
    const double *(*measured)(const void *own, size_t index, const char **name, size_t *count);
    /* Called on all ranks after the training: shows what was learned, on validation data, as a JSON document for the
     * run's folder and its report. On the first rank *out becomes a text that is freed with free(), or NULL if there is
     * nothing to show. Collective. NULL: the program shows nothing. */
    ad_status (*show)(void *own, const ad_forward *forward, char **out);
    /* Gives the lines of a report's summary: returns the name of line `index` and writes its text to `buffer`; NULL
     * after the last. NULL: there are none. */
    const char *(*fact)(const void *own, size_t index, char *buffer, size_t size);
  } account;

  /* What the program does besides its steps, and which keys must not change when a run resumes. */
  struct {
    /* Called on all ranks after a step's updates, for changes that happen once in a step (to states, for example).
     * AD_STEP_SKIPPED: the step updated nothing. Collective. NULL: nothing to do. */
    ad_status (*after_step)(void *own, ad_step_outcome outcome);
    const ad_pretraining *pretraining; /* a training that runs before this program's own; NULL: none */
    /* For keys that may otherwise change between a checkpoint and a run that resumes from it (train.microbatches):
     * returns why this key must not change, in half a sentence ("states are kept for each microbatch"), or NULL if it
     * may. NULL: all such keys may change. */
    const char *(*fixed)(const void *own, const char *key);
  } course;

  /* 1: the program has one module, which a pipeline divides into stages. `create` adds one module for each stage, all
   * with the same name, each on the mesh of its stage (ad_program_stage_count, ad_program_mesh); parameters keep the
   * names that they have without stages. `rules.check` gets the mesh of the first stage. 0: the program's mesh has no
   * axis pp. */
  int has_stages;
  /* Returns what account.flops returns, for one stage: a plan weights stages by it. NULL: all stages weigh the same. */
  double (*stage_flops)(const void *own, size_t stage, int64_t samples);
  /* 1: train.leaves works although the program has choices, measured numbers, after_step or states. The program then
   * counts only what ad_phase_discards does not exclude, after_step sums it over ad_program_full_mesh in a way that
   * depends on no order (integers), and states change in after_step alone. */
  int sums_leaves;
};

/* Registers a custom kind; call it before recipes of that kind are read. The record is borrowed. AD_INVALID if the
 * name is taken. */
AD_API AD_CHECKED ad_status ad_program_register(const ad_program_kind *kind);

/* ---- loading a program from a shared library ---- */

/* What a shared object with programs exports (AD_PROGRAM_OBJECT): the kinds, and the version and the library that it
 * was built with. */
typedef struct ad_program_object {
  size_t size;                                       /* sizeof(ad_program_object) */
  const char *version;                               /* AD_HEADER_VERSION */
  const ad_program_kind *const *kinds;               /* NULL at the end */
  ad_status (*library)(const ad_program_kind *kind); /* the ad_program_register that the object was linked with */
} ad_program_object;

/* Defines what `addend --program FILE` and ad_program_load look for in a shared object. Write it once in the object's C
 * file:
 *
 *   static const ad_program_kind *const kinds[] = {&classifier, NULL};
 *   AD_PROGRAM_OBJECT(kinds);
 *
 * The macro does no harm if the same file is built as a program. */
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

/* Loads a shared object and registers its kinds; the object stays loaded. Its code runs in this process, so never take
 * its name from a file that others wrote. AD_INVALID, with a message: the file does not exist, is no shared object,
 * contains no programs, was built with the headers of another version, or was linked with its own copy of the library.
 */
AD_API AD_CHECKED ad_status ad_program_load(const char *path);
/* For commands, before they load a program or read a recipe: forks, and returns in the child. The parent waits for the
 * child and passes signals to it. If a function of a program ends the child, by exit or by a fault, the parent calls
 * `failed` with a message that names the function, and exits with the result. Otherwise the parent ends as the child
 * did. */
AD_API void ad_program_supervise(int (*failed)(ad_status status));

/* ---- planning a program: adding modules, counts, losses and phases ---- */

/* Returns the settings with which the program was created. */
AD_API const ad_program_setting *ad_program_setting_of(const ad_program *program);
/* Checks that files of weights contain exactly these parameters, for a program that starts from such a file.
 * AD_INVALID, with the files' path, unless every parameter is there as a tensor of its shape and of floats, and there
 * is no other tensor; names the tensors that are missing, that differ and that are left over. Reads no values. */
AD_API AD_CHECKED ad_status ad_params_check_weights(const ad_param_spec *params, size_t count,
                                                    const ad_weights *weights);

/* The following functions are for `create`. They copy what they are given, except the names of counts, losses, phases
 * and values, which are borrowed. The name MODULE.NAME of a parameter or a state has at most 191 bytes; AD_INVALID
 * otherwise. */
AD_API AD_CHECKED ad_status ad_program_add_module(ad_program *to, const ad_module_spec *spec);
/* Adds a module with the parameters and states of a list of declarations (layers.h), on the list's mesh; `norm_group`
 * may be NULL. Releases the list in any case. If a declaration failed, returns its status. */
AD_API AD_CHECKED ad_status ad_program_add_declared(ad_program *to, const char *name, const char *norm_group,
                                                    ad_declarations *list);
/* Adds a layer: its name as the program gives it to ad_recompute in a phase ("blocks.0"; with several modules
 * "MODULE.blocks.0"), copied. A recipe's train.recompute names layers by it. */
AD_API AD_CHECKED ad_status ad_program_add_layer(ad_program *to, const char *name);
AD_API AD_CHECKED ad_status ad_program_add_count(ad_program *to, const ad_count_spec *spec);
AD_API AD_CHECKED ad_status ad_program_add_loss(ad_program *to, const ad_loss_spec *spec);
/* Adds a transfer. Call it after adding the phase that gives the value and before adding the phases that need it. */
AD_API AD_CHECKED ad_status ad_program_add_transfer(ad_program *to, const ad_transfer_spec *spec);
AD_API AD_CHECKED ad_status ad_program_add_phase(ad_program *to, const ad_phase *phase);

/* Returns the mesh of a module; with train.leaves, that of this rank's data-parallel position. */
AD_API const ad_mesh *ad_program_mesh(const ad_program *program, size_t module);
/* Returns the mesh of a module with all its ranks, also with train.leaves: for sums after a step (after_step), over the
 * leaves of all ranks. */
AD_API const ad_mesh *ad_program_full_mesh(const ad_program *program, size_t module);
/* Returns the mesh of the kind's module `pool` with all its blocks or stages, for counts that blocks or stages
 * share. */
AD_API const ad_mesh *ad_program_pool(const ad_program *program, size_t pool);
/* Returns the number of stages into which the program's module is divided, each its own module; 1 if its kind has no
 * stages. */
AD_API size_t ad_program_stage_count(const ad_program *program);

/* ---- batches that are read row by row ---- */

typedef struct ad_batch ad_batch; /* owned by its program */

typedef struct ad_batch_field {
  const char *name; /* borrowed */
  ad_dtype dtype;
  ad_shape row; /* shape of one sample; 0 dimensions: a number */
} ad_batch_field;
/* For `create`: makes, for every microbatch that this rank runs, an array [samples, row...] of each field, with layout
 * `rows`, and zeroes it. A program has at most one batch. Unless the kind's `data` says otherwise, these arrays are the
 * program's data: their bytes count as its memory, and dumps contain them ("microbatch.0.x"). The fields are
 * borrowed. This rank must be on the mesh of `rows`, else AD_INVALID. On a rank that reads no batch, as in some
 * pools (ad_mesh_has_rank), `create` must not call this, and `read` must not call ad_batch_read. */
AD_API AD_CHECKED ad_status ad_program_add_batch(ad_program *to, const ad_layout *rows, const ad_batch_field *fields,
                                                 size_t count, ad_batch **out);
/* Returns the array of one field in microbatch m; borrowed. It has no data if this rank does not run m. */
AD_API const ad_array *ad_batch_array(const ad_batch *batch, size_t field, size_t m);

/* One of this rank's samples, to be read. */
typedef struct ad_batch_row {
  size_t size; /* sizeof(ad_batch_row) */
  /* arrays of the sample's microbatch, in the order in which ad_program_add_batch got the fields */
  const ad_array *fields;
  size_t row; /* row of the sample in these arrays */
  /* The sample's number: step * global_batch + its index in the step's batch; in the validation set, its index in the
   * set. */
  int64_t sample;
  ad_data_split validation;
  /* 1 if the sample counts. It is 0 after the last sample of the validation set; `read` sets it to 0 for any other
   * sample that must not count */
  int counts;
} ad_batch_row;
/* The function that reads one sample into its arrays. */
typedef struct ad_row_reader {
  ad_status (*read)(void *own, ad_batch_row *row);
  void *own;
} ad_row_reader;
/* For the kind's `read`: calls the reader for every sample of this rank, and sets counted[m] to the number of samples
 * that count in microbatch m, 0 if this rank does not run m (pass `counted[0]` of `read` if count 0 counts samples). On
 * backend dry nothing is read, and all samples count. */
AD_API AD_CHECKED ad_status ad_batch_read(ad_batch *batch, int64_t step, ad_data_split validation,
                                          const ad_row_reader *reader, int64_t *counted);
/* Facts about the batch that was read last: its step; the origin of its samples; and the number, in the step's batch of
 * all ranks, of microbatch m's first sample. A phase that draws random numbers by sample (ad_dropout) needs them. Such
 * a phase draws none for validation batches, so a check's forward passes draw the same numbers as its steps. */
AD_API int64_t ad_batch_step(const ad_batch *batch);
AD_API ad_data_split ad_batch_split(const ad_batch *batch);
AD_API int64_t ad_batch_first(const ad_batch *batch, size_t m);

/* ---- what a phase's functions may call ---- */

AD_API ad_tape *ad_phase_tape(ad_phase_run *at);
AD_API size_t ad_phase_microbatch(const ad_phase_run *at); /* with train.leaves the number of the leaf */
AD_API size_t ad_phase_module(const ad_phase_run *at);     /* index of the phase's module in the program */
/* Returns 1 if the phase runs in a step, 0 if it runs in a forward pass without a step, in which it must change
 * nothing. */
AD_API int ad_phase_trains(const ad_phase_run *at);
/* Returns 1 if the results of this run of the phase are discarded, because the rank runs the microbatch only to gather
 * parameters together with other ranks (setting->own). What a program counts for itself must leave out such a run. */
AD_API int ad_phase_discards(const ad_phase_run *at);
/* Returns the power of two by which every gradient of a step is multiplied (precision.loss_scale); 1 if there is no
 * loss scale. Code that reads a gradient after backward must divide by it. */
AD_API double ad_phase_loss_scale(const ad_phase_run *at);
/* Returns the parameters of the phase's module. Only one phase of a microbatch may use a parameter, because its
 * gradient is submitted once. */
AD_API const ad_parameters *ad_phase_parameters(ad_phase_run *at);
/* Returns state `state` of the phase's module. A phase may use it as a constant of the tape, and may write it: only the
 * program itself changes states. */
AD_API ad_array *ad_phase_state(ad_phase_run *at, size_t state);
/* A change of one state of the phase's module by a gradient, within a step; how the state changes is the program's own
 * rule. */
typedef struct ad_state_change {
  size_t state;             /* index of the state */
  const ad_array *gradient; /* this rank's gradient, with as many elements as this rank has of the state */
} ad_state_change;
/* A rule by which states change within a step; `i` is the index of a change in the list of changes. */
typedef struct ad_state_rule {
  size_t size; /* sizeof(ad_state_rule) */
  /* Applies one change to the change's state. */
  void (*change)(const void *own, ad_phase_run *at, const ad_state_change *change, size_t i);
  /* Called after the change: adds to off[numel] how far each element of the state may be off if this gradient and all
   * earlier ones may be off by `error`. A check tolerates that much, because a rule that divides by accumulated values
   * amplifies rounding. NULL: nothing is added. */
  void (*off)(const void *own, ad_phase_run *at, const ad_state_change *change, size_t i, double error, double *off);
  const void *own;
} ad_state_rule;
/* Applies the rule to one state after another. Nothing is reduced: if several ranks share one state, each needs the
 * full gradient. Checks inject known bugs here, and find out here how far a state may be off. AD_INVALID if a gradient
 * is NULL or its number of elements is not its state's; earlier states in the list are then changed already. */
AD_API AD_CHECKED ad_status ad_phase_change_states(ad_phase_run *at, const ad_state_rule *rule,
                                                   const ad_state_change *changes, size_t count);
/* Returns the value that an earlier phase gave under this name, on this phase's tape. The value is a leaf, or the
 * result of its transfer. The value carries a gradient unless, as far as this rank can see, it was made of constants
 * alone. */
AD_API ad_tensor *ad_phase_need(ad_phase_run *at, const char *name);
/* Gives a value to later phases under this name. */
AD_API void ad_phase_give(ad_phase_run *at, const char *name, ad_tensor *value);
/* Submits the numerator of the loss `loss` in this microbatch, or this phase's part of the numerator; once in a phase.
 * The step divides the numerator by the loss's count, starts backward from the quotient times the loss's coefficient,
 * and reports the quotient. */
AD_API void ad_phase_loss(ad_phase_run *at, size_t loss, ad_tensor *numerator);

#if defined(__cplusplus)
}
#endif
#endif
