/* Recipes: YAML files that name a model, data, mesh, precision and schedule. A recipe is read and checked as a whole
 * before any rank starts; all its mistakes are reported together, each with its line.
 *
 * For users. Any number of threads may use a recipe at a time; read recipes on one. */
#ifndef ADDEND_RECIPE_H
#define ADDEND_RECIPE_H
#include "addend/program.h"

#if defined(__cplusplus)
extern "C" {
#endif

enum { AD_MICROBATCHES_MAX = 1024 };

/* Other dtypes for the parameters whose names match a pattern; a key of the recipe's `precision.overrides`. Of several
 * patterns that match a parameter the first counts alone. */
typedef struct ad_recipe_override {
  char *pattern; /* a glob that parameter names are matched with */
  /* dtypes for these parameters; a zero field means the dtype of the recipe's `precision` */
  ad_precision_policy policy;
} ad_recipe_override;

/* Parameters that are updated in another way; an entry of the recipe's `groups`. A parameter is in the group whose
 * pattern is the first that matches its name. */
enum { AD_GIVES_KIND = 1, AD_GIVES_LR = 2, AD_GIVES_DECAY = 4, AD_GIVES_FROZEN = 8 };
typedef struct ad_recipe_group {
  char *pattern;
  int gives;              /* flags AD_GIVES_...: which of the following the entry gives; the others are 0 */
  ad_optimizer_kind kind; /* in place of the recipe's */
  double lr;              /* in place of train.lr, with the same warm-up and cosine */
  double decay;           /* in place of train.weight_decay, for all parameters of the group */
  int frozen;             /* 1: the parameters do not learn */
} ad_recipe_group;
enum { AD_GROUPS_MAX = 64 }; /* the most groups of a recipe, with that of the parameters that no pattern matches */

/* Parameters that are sharded in another way; an entry of the recipe's `shard.groups`. A parameter is in the group whose
 * pattern is the first that matches its name. */
enum { AD_SHARDS_ZERO = 1, AD_SHARDS_SYNC = 2, AD_SHARDS_BUCKET = 4, AD_SHARDS_WINDOW = 8, AD_SHARDS_PREFETCH = 16 };
typedef struct ad_recipe_shard_group {
  char *pattern;
  int gives; /* flags AD_SHARDS_...: which of the following the entry gives; the recipe's own keys complete it */
  int64_t zero, window, prefetch;
  double bucket_mib;
  ad_sync *sync; /* for each microbatch; owned */
  size_t sync_count;
} ad_recipe_shard_group;

/* The values of a recipe's `placement`: all modules on the same ranks; each module on its own ranks, one mesh after
 * another. */
#define AD_COLOCATED "colocated"
#define AD_DISJOINT "disjoint"

/* The mesh of one module of the recipe's program. */
typedef struct ad_recipe_mesh {
  char *module; /* NULL if the program has one module and the recipe gives its mesh as a text */
  char *text;
} ad_recipe_mesh;

/* Every key of a recipe, with defaults filled in. Strings and lists belong to the recipe. */
typedef struct ad_recipe {
  char *path; /* path of the recipe's file */
  char *name;
  char *kind;                     /* model.kind */
  const ad_program_kind *program; /* the record of the program with that kind */
  void *options;                  /* the program's options: program->options_size bytes */
  char *from; /* model.from: folder of a model saved by Transformers, see ad_run_read_weights; NULL: none */
  /* model.weights: path of initial values, see ad_run_read_weights; NULL: values are drawn from the seed */
  char *weights;
  ad_recipe_mesh *meshes; /* one for each module of the program, in the program's order */
  size_t mesh_count;
  char *placement; /* AD_COLOCATED or AD_DISJOINT if there are several modules; NULL if the program has one */
  struct {
    ad_precision_policy policy; /* zero fields: the defaults of ad_precision_policy */
    ad_dtype compute;           /* f32, f64 or bf16 */
    ad_dtype residual;          /* dtype of the residual stream: 0 (the wide one of compute), or compute */
    int64_t loss_scale;         /* first exponent of the dynamic loss scale, if some gradients are f16 */
    ad_recipe_override *overrides;
    size_t override_count;
  } precision;
  struct {
    /* ZeRO stage over dp_shard, 0 to 3; and over dp_replicate, 0 or 1 */
    int64_t zero, outer_zero;
    double bucket_mib;
    /* number of bucket slots, as in ad_reducer_options; 0: so many that no bucket waits for another bucket's slot */
    int64_t window;
    /* number of units that are gathered before their use, as in ad_store_options */
    int64_t prefetch;
    ad_recipe_shard_group *groups;
    size_t group_count; /* below AD_GROUPS_MAX */
  } shard;
  struct {
    int64_t global_batch, microbatches, steps;
    double lr, final_lr_fraction, clip;
    int64_t warmup;
    int64_t seed;
    ad_sync *sync; /* for each microbatch, how far gradients are reduced after it */
    size_t sync_count;
    int64_t leaves;   /* parts of the global batch whose gradients are summed by one tree over them; 0: none */
    char **recompute; /* names of layers that run again in backward, as patterns, or the one word `none` or `layers` */
    size_t recompute_count;
    /* Not a key. With leaves: the number of rounds of a microbatch, in each of which a rank computes at most one
     * leaf */
    int64_t rounds_each;
    /* Not a key. With leaves: 1 if the program has a parameter that ZeRO shards over dp_shard, so that gradients are
     * reduce-scattered; else 0. Set after the program was created to check the recipe. */
    int scatters;
  } train;
  /* Keys of `train` and of `optimizer`. Each number is exact: 0 is 0, not the default. `size` is not set. */
  ad_optimizer_options optimizer;
  ad_recipe_group *groups;
  size_t group_count; /* below AD_GROUPS_MAX */
  struct {
    /* samples: number of samples in the validation set; every: steps between evaluations, 0: about ten evaluations in a
     * run */
    int64_t samples, every;
    char **prompts; /* beginnings that each evaluation continues: texts, or numbers of tokens */
    size_t prompt_count;
    int64_t prompt_tokens; /* number of tokens to continue with */
  } evaluate;
  struct {
    /* every: steps between checkpoints, 0: no checkpoints; keep: number of checkpoints that stay */
    int64_t every, keep;
  } checkpoint;
  /* The schedule of a pipeline, only for programs with stages. */
  struct {
    char *kind;      /* name of a schedule of schedule.h; NULL: interleaved if a rank has several stages, else 1f1b */
    int64_t stages;  /* 0: as many as the mesh's axis pp */
    int64_t *layers; /* number of layers of each stage; NULL: layers are divided by the cost of their products */
    size_t layer_count;
  } schedule;
  char **given; /* paths of the keys that the file or --set gives, in the order in which ad_recipe_print writes keys */
  size_t given_count;
  /* The length, in tokens, of the sliding window of model.from's model, which addend does not compute: it changes
   * nothing in sequences of at most this length. 0: there is no window, or the recipe was read from a text
   * (ad_recipe_parse) */
  int64_t window;
} ad_recipe;

/* Reads the recipe at `path`, applies `sets` ("PATH=VALUE", as --set) in order, and checks everything. This includes
 * that the text exists, and that model.weights has every parameter in its shape with finite values, for which those
 * files are read once. On AD_INVALID or AD_IO ad_last_error() holds all messages, one a line: "gpt.yaml:7:
 * train.microbatches: must be at least 1, is 0". */
AD_API AD_CHECKED ad_status ad_recipe_read(const char *path, const char *const *sets, size_t set_count,
                                           ad_recipe **out);
/* Like ad_recipe_read, for recipes that are planned and not run: of the folder model.from only config.json and the
 * headers of the weights are read. */
AD_API AD_CHECKED ad_status ad_recipe_read_on_paper(const char *path, const char *const *sets, size_t set_count,
                                                    ad_recipe **out);
/* Like ad_recipe_read, from a text; `path` is used only in messages. No file that the recipe names is looked at: a
 * recipe with model.from must have every key that it needs, as ad_recipe_print writes them. */
AD_API AD_CHECKED ad_status ad_recipe_parse(const char *text, const char *path, const char *const *sets,
                                            size_t set_count, ad_recipe **out);
AD_API void ad_recipe_destroy(ad_recipe *recipe);
/* Writes the recipe as YAML with every key and its value. Caller frees *out with free(). */
AD_API AD_CHECKED ad_status ad_recipe_print(const ad_recipe *recipe, char **out);
/* Writes the mesh key as one text: the mesh string, or "{encoder: dp=4, model: dp=2 cp=2}". Returns buffer. */
AD_API const char *ad_recipe_mesh_text(const ad_recipe *recipe, char *buffer, size_t size);
/* Sets *out to the recipe of the training that runs before this recipe's own (ad_program_kind.pretraining), on the same
 * ranks, all of them data-parallel; NULL if there is none. */
AD_API AD_CHECKED ad_status ad_recipe_pretraining(const ad_recipe *recipe, ad_recipe **out);
/* Lists all paths that --set accepts, over the recipes of all registered programs: one path a line, each once. Caller
 * frees *out with free(). */
AD_API AD_CHECKED ad_status ad_recipe_keys(char **out);
/* Sets *out to the number of ranks on which the recipe runs. */
AD_API AD_CHECKED ad_status ad_recipe_world(const ad_recipe *recipe, int64_t *out);

#if defined(__cplusplus)
}
#endif
#endif
